// Memory that tensors share: in one storage, or in storages whose memory overlaps. NumPy, DLPack and
// others make tensors with storages of their own in the memory of tensors.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <tuple>

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include "tensor_objects.h"

// The memory of one tensor's storage. A storage without memory, as of a tensor without data, is a
// place of its own; so is a tensor that refuses access to its storage.
struct Span {
  const void *storage;
  const char *begin, *end;
  Py_ssize_t first;  // index of the first tensor in the same memory
};

inline Span span_of(const c10::TensorImpl *impl, Py_ssize_t index) {
  const c10::StorageImpl *storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (!storage) return {impl, nullptr, nullptr, index};
  const char *begin = nullptr;
  try {
    begin = (const char *)storage->data();
  } catch (...) {  // torch's errors: there is no memory to share
  }
  return {storage, begin, begin ? begin + storage->nbytes() : nullptr, index};
}

// Address of a tensor's first element in a storage that begins at `begin`.
inline const char *address_in(const c10::TensorImpl *impl, const char *begin) {
  try {
    return begin + impl->itemsize() * impl->storage_offset();
  } catch (...) {  // a subclass in Python that has no offset
    return begin;
  }
}

inline bool overlap(const Span &a, const Span &b) {
  return a.storage == b.storage || (a.begin < b.end && b.begin < a.end);
}

// (*tensors) -> for each tensor, the index of the first one in the same memory, and the distance from
// it in bytes.
inline PyObject *memory_of(PyObject *, PyObject *const *tensors, Py_ssize_t count) {
  c10::SmallVector<Span, 8> spans, order;
  c10::SmallVector<const char *, 8> addresses;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!tensor_objects::is_tensor(tensors[i])) return PyErr_Format(PyExc_TypeError, "expected tensors");
    const c10::TensorImpl *impl = tensor_objects::tensor_impl(tensors[i]);
    spans.push_back(span_of(impl, i));
    const char *begin = spans.back().begin;
    addresses.push_back(begin ? address_in(impl, begin) : nullptr);
  }
  // Sorted by address, a run of overlapping spans is one place.
  order = spans;
  std::sort(order.begin(), order.end(), [](const Span &a, const Span &b) {
    return std::tie(a.begin, a.storage, a.first) < std::tie(b.begin, b.storage, b.first);
  });
  for (size_t low = 0; low < order.size();) {
    Span run = order[low];
    size_t high = low + 1;
    for (; high < order.size() && overlap(run, order[high]); high++) {
      run.end = std::max(run.end, order[high].end);
      run.storage = order[high].storage;
      run.first = std::min(run.first, order[high].first);
    }
    for (; low < high; low++) spans[order[low].first].first = run.first;
  }
  PyObject *found = PyTuple_New(2 * count);
  if (!found) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *index = PyLong_FromSsize_t(spans[i].first);
    PyObject *distance = PyLong_FromSsize_t(addresses[i] - addresses[spans[i].first]);
    PyTuple_SET_ITEM(found, 2 * i, index);
    PyTuple_SET_ITEM(found, 2 * i + 1, distance);
    if (!index || !distance) {
      Py_DECREF(found);
      return nullptr;
    }
  }
  return found;
}

// Loans of memory that a CUDA graph writes, and the addresses of a graph's inputs.
//
// A CUDA graph writes its results to the same memory at each replay. `Lender` hands out tensors over
// that memory, new ones for each replay, and counts the storages that somebody still holds. The
// count falls when the last tensor over a storage dies, on any thread, with or without Python's
// lock. The memory itself lives as long as the lender or a loan.
#include "tensor_objects.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

// Declared here: its header includes all of torch's Python binding.
PyObject *THPVariable_Wrap(const at::TensorBase &tensor);

namespace {

using tensor_objects::is_tensor;
using tensor_objects::tensor_impl;
using Count = std::shared_ptr<std::atomic<Py_ssize_t>>;
using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

struct Loan {
  Count open;
  StoragePtr memory;
};

void end_loan(void *context) {
  auto *loan = (Loan *)context;
  loan->open->fetch_sub(1, std::memory_order_acq_rel);
  delete loan;
}

struct Lender {
  PyObject_HEAD
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> *tensors;
  std::vector<StoragePtr> *storages;
  std::vector<size_t> *storage_of;  // per tensor
  Count *open;
};

c10::Storage lend(Lender *self, const StoragePtr &memory) {
  self->open->get()->fetch_add(1, std::memory_order_acq_rel);
  auto *loan = new Loan{*self->open, memory};
  c10::DataPtr pointer(memory->mutable_data(), loan, end_loan, memory->device());
  // Resizable like any other: a resize takes new memory from the device's allocator.
  return c10::Storage(c10::Storage::use_byte_size_t(), memory->nbytes(), std::move(pointer),
                      c10::GetAllocator(memory->device().type()), true);
}

PyObject *lender_lend(PyObject *object, PyObject *) {
  auto *self = (Lender *)object;
  try {
    std::vector<c10::Storage> lent;
    lent.reserve(self->storages->size());
    for (auto &memory : *self->storages) lent.push_back(lend(self, memory));
    PyObject *result = PyList_New((Py_ssize_t)self->tensors->size());
    for (size_t i = 0; result && i < self->tensors->size(); i++) {
      auto impl = (*self->tensors)[i]->shallow_copy_and_detach(c10::VariableVersion(0), true);
      impl->set_storage_keep_dtype(lent[(*self->storage_of)[i]]);
      PyObject *tensor = THPVariable_Wrap(at::TensorBase(std::move(impl)));
      if (tensor) PyList_SET_ITEM(result, (Py_ssize_t)i, tensor);
      else Py_CLEAR(result);
    }
    return result;
  } catch (const std::exception &error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

PyObject *lender_open(PyObject *object, void *) {
  return PyLong_FromSsize_t(((Lender *)object)->open->get()->load(std::memory_order_acquire));
}

PyObject *lender_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *tensors;
  if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &tensors)) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++)
    if (!is_tensor(PyList_GET_ITEM(tensors, i)))
      return PyErr_Format(PyExc_TypeError, "expected a list of tensors");
  auto *self = (Lender *)type->tp_alloc(type, 0);
  if (!self) return nullptr;
  self->tensors = new std::vector<c10::intrusive_ptr<c10::TensorImpl>>;
  self->storages = new std::vector<StoragePtr>;
  self->storage_of = new std::vector<size_t>;
  self->open = new Count(std::make_shared<std::atomic<Py_ssize_t>>(0));
  std::unordered_map<c10::StorageImpl *, size_t> known;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
    auto impl = c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(tensor_impl(PyList_GET_ITEM(tensors, i)));
    auto *storage = impl->storage().unsafeGetStorageImpl();
    auto [place, added] = known.emplace(storage, self->storages->size());
    if (added) self->storages->push_back(StoragePtr::reclaim_copy(storage));
    self->storage_of->push_back(place->second);
    self->tensors->push_back(std::move(impl));
  }
  return (PyObject *)self;
}

void lender_dealloc(PyObject *object) {
  auto *self = (Lender *)object;
  delete self->tensors;
  delete self->storages;
  delete self->storage_of;
  delete self->open;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef lender_methods[] = {
    {"lend", lender_lend, METH_NOARGS, "Return new tensors over the memory of the given ones."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef lender_attributes[] = {
    {"open", lender_open, nullptr, "Number of lent storages that somebody still holds.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyTypeObject lender_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// --- addresses -----------------------------------------------------------------------------------

// Address of a tensor's first element; nullptr for anything else.
const void *data_of(PyObject *value) {
  if (!is_tensor(value)) return nullptr;
  c10::TensorImpl *impl = tensor_impl(value);
  if (!impl->has_storage()) return nullptr;
  const char *start = (const char *)impl->storage().data();
  return start ? start + impl->itemsize() * impl->storage_offset() : nullptr;
}

bool both_lists(PyObject *const *args, Py_ssize_t count) {
  if (count == 2 && PyList_Check(args[0]) && PyList_Check(args[1])) return true;
  PyErr_SetString(PyExc_TypeError, "expected two lists");
  return false;
}

PyObject *same_addresses(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (!both_lists(args, count)) return nullptr;
  Py_ssize_t size = PyList_GET_SIZE(args[1]);
  if (PyList_GET_SIZE(args[0]) != size) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject *expected = PyList_GET_ITEM(args[1], i);
    if (expected == Py_None) continue;
    if (data_of(PyList_GET_ITEM(args[0], i)) != PyLong_AsVoidPtr(expected)) {
      if (PyErr_Occurred()) return nullptr;
      Py_RETURN_FALSE;
    }
  }
  Py_RETURN_TRUE;
}

PyObject *is_lent(PyObject *, PyObject *tensor) {
  if (!is_tensor(tensor)) Py_RETURN_FALSE;
  c10::TensorImpl *impl = tensor_impl(tensor);
  if (!impl->has_storage()) Py_RETURN_FALSE;
  return PyBool_FromLong(impl->storage().data_ptr().get_deleter() == end_loan);
}

PyMethodDef methods[] = {
    {"is_lent", is_lent, METH_O, "True for a tensor over memory that a `Lender` lent."},
    {"same_addresses", (PyCFunction)(void *)same_addresses, METH_FASTCALL,
     "(arguments, addresses): True if each tensor's memory begins at its address; None admits any argument."},
    {"calibrate", tensor_objects::calibrate, METH_VARARGS,
     "(tensor, tensor._cdata): find the layout of tensor objects."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_loans", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_loans(void) {
  lender_type.tp_name = "_magpy_loans.Lender";
  lender_type.tp_basicsize = sizeof(Lender);
  lender_type.tp_flags = Py_TPFLAGS_DEFAULT;
  lender_type.tp_new = lender_new;
  lender_type.tp_dealloc = lender_dealloc;
  lender_type.tp_methods = lender_methods;
  lender_type.tp_getset = lender_attributes;
  lender_type.tp_doc = "Lends the memory of tensors, and counts the storages that are lent.";
  if (PyType_Ready(&lender_type) < 0) return nullptr;
  PyObject *m = PyModule_Create(&module);
  if (m && PyModule_AddObjectRef(m, "Lender", (PyObject *)&lender_type) < 0) Py_CLEAR(m);
  return m;
}

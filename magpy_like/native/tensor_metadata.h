// The metadata of tensors, and its comparison: in detail, or as one block of memory.
#pragma once
#include <c10/util/SmallVector.h>

#include <cstring>
#include <memory>
#include <typeinfo>
#include <vector>

#include "tensor_objects.h"

namespace {

using tensor_objects::is_tensor;
using tensor_objects::tensor_impl;

// Of a tensor with dynamic sizes or strides: bounds of each size and of each stride, and the dimension
// whose size times stride is the stride (-1: there is none, and the stride has bounds).
struct DynamicDimensions {
  std::vector<int64_t> minimum, maximum, stride_source, minimum_stride, maximum_stride;
};

// Expected metadata of a tensor.
struct Metadata {
  PyTypeObject *type;
  uint64_t keys;
  c10::ScalarType dtype;
  c10::Device device{c10::kCPU};
  bool requires_grad, strided;
  size_t rank;
  c10::SmallVector<int64_t, 8> layout;  // sizes, then strides
  std::unique_ptr<DynamicDimensions> dynamic;

  explicit Metadata(PyObject *tensor) : type(Py_TYPE(tensor)) {
    c10::TensorImpl *t = tensor_impl(tensor);
    keys = t->key_set().raw_repr();
    dtype = c10::typeMetaToScalarType(t->dtype());
    device = t->device();
    requires_grad = t->requires_grad();
    strided = t->layout() == c10::kStrided;
    const c10::IntArrayRef n = t->sizes();  // throws for a nested tensor, which has none
    rank = n.size();
    layout.append(n.begin(), n.end());
    if (strided) layout.append(t->strides().begin(), t->strides().end());
  }

  c10::IntArrayRef sizes() const { return {layout.data(), rank}; }
  c10::IntArrayRef strides() const { return {layout.data() + rank, layout.size() - rank}; }

  // Catches exceptions of torch: the interpreter is written in C.
  static Metadata *of(PyObject *tensor) {
    try {
      return new Metadata(tensor);
    } catch (const std::exception &) {
      PyErr_SetString(PyExc_TypeError, "a tensor without sizes");
      return nullptr;
    }
  }

  // Returns the name of the first property that differs, or null.
  const char *difference(PyObject *tensor) const noexcept {
    try {
      return find_difference(tensor);
    } catch (const std::exception &) {
      return "kind";
    }
  }

  const char *find_difference(PyObject *tensor) const {
    if (Py_TYPE(tensor) != type) return "type";
    c10::TensorImpl *t = tensor_impl(tensor);
    if (t->dtype() != c10::scalarTypeToTypeMeta(dtype)) return "dtype";
    if (t->device() != device) return "device";
    if (t->requires_grad() != requires_grad) return "requires_grad";
    if (t->key_set().raw_repr() != keys) return "layout or dispatch keys";
    if (dynamic && strided) return find_dynamic_difference(t->sizes(), t->strides());
    if (t->sizes() != sizes()) return "shape";
    if (strided && t->strides() != strides()) return "strides";
    return nullptr;
  }

  const char *find_dynamic_difference(c10::IntArrayRef n, c10::IntArrayRef s) const {
    if (n.size() != rank) return "number of dimensions";
    const DynamicDimensions &d = *dynamic;
    for (size_t i = 0; i < rank; i++) {
      if (n[i] < d.minimum[i] || n[i] > d.maximum[i]) return "shape";
      const int64_t from = d.stride_source[i];
      if (from < 0 ? s[i] < d.minimum_stride[i] || s[i] > d.maximum_stride[i] : s[i] != n[from] * s[from])
        return "strides";
    }
    return nullptr;
  }
};

// Names the members of a TensorImpl from its sizes to its dispatch keys, which lie in one block and
// hold all metadata but `requires_grad`.
struct ImplLayout : c10::TensorImpl {
  static constexpr size_t begin() { return offsetof(ImplLayout, sizes_and_strides_); }
  static constexpr size_t end() { return offsetof(ImplLayout, key_set_) + sizeof(c10::DispatchKeySet); }
};
constexpr size_t BLOCK_WORDS = (ImplLayout::end() - ImplLayout::begin()) / sizeof(uint64_t);
static_assert(BLOCK_WORDS * sizeof(uint64_t) == ImplLayout::end() - ImplLayout::begin());

// A tensor whose metadata must not change. Metadata is compared as a block of memory; only if the block
// has changed, it is compared in detail.
struct WatchedTensor {
  PyObject *tensor;  // owned
  PyTypeObject *type;
  c10::TensorImpl *impl = nullptr;  // null: the block says nothing
  uint64_t block[BLOCK_WORDS];
  bool requires_grad;

  const uint64_t *found_block() const { return (const uint64_t *)((const char *)impl + ImplLayout::begin()); }

  bool has_same_block() const {
    const uint64_t *found = found_block();
    uint64_t difference = 0;
#pragma GCC unroll 32
    for (size_t i = 0; i < BLOCK_WORDS; i++) difference |= found[i] ^ block[i];
    return !difference;
  }

  bool is_as_found() const {
    return impl && tensor_impl(tensor) == impl && Py_TYPE(tensor) == type && has_same_block() &&
           impl->requires_grad() == requires_grad;
  }

  // Copies the block, if it determines the metadata: then sizes and strides are in it, and neither a
  // subclass of TensorImpl, such as that of sparse tensors, nor Python answers for them.
  void note_block() {
    impl = nullptr;
    c10::TensorImpl *found = tensor_impl(tensor);
    const bool answers = typeid(*found) == typeid(c10::TensorImpl) && found->layout() == c10::kStrided &&
                         !found->key_set().has_any(c10::python_ks);
    if (!answers) return;
    const char *inside = (const char *)found + ImplLayout::begin(), *end = (const char *)found + ImplLayout::end();
    const char *sizes = (const char *)found->sizes().data(), *strides_end = (const char *)found->strides().end();
    const bool has_own_sizes = sizes >= inside && strides_end <= end;  // not in memory of their own
    if (!has_own_sizes) return;
    impl = found;
    memcpy(block, found_block(), sizeof(block));
    requires_grad = impl->requires_grad();
  }
};

}  // namespace

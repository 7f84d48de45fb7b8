// The TensorImpl of a tensor object, without torch's Python headers, which take long to compile.
//
// The position of the pointer differs between versions of torch. `calibrate` finds it once per
// extension module.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <c10/core/TensorImpl.h>

namespace tensor_objects {

inline PyTypeObject *tensor_type;  // torch._C.TensorBase
inline Py_ssize_t impl_offset;     // offset of the TensorImpl pointer in a tensor object

inline c10::TensorImpl *tensor_impl(PyObject *tensor) {
  return *(c10::TensorImpl **)((char *)tensor + impl_offset);
}

inline bool is_tensor(PyObject *value) { return PyObject_TypeCheck(value, tensor_type); }

// (tensor, tensor._cdata): true if the layout was found.
inline PyObject *calibrate(PyObject *, PyObject *args) {
  PyObject *tensor;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "OK", &tensor, &address)) return nullptr;
  PyTypeObject *base = Py_TYPE(tensor);
  while (base->tp_base && base->tp_base != &PyBaseObject_Type) base = base->tp_base;
  const Py_ssize_t word = sizeof(void *);
  for (Py_ssize_t offset = sizeof(PyObject); offset + word <= base->tp_basicsize; offset += word)
    if (*(unsigned long long *)((char *)tensor + offset) == address) {
      impl_offset = offset;
      tensor_type = (PyTypeObject *)Py_NewRef((PyObject *)base);
      Py_RETURN_TRUE;
    }
  Py_RETURN_FALSE;
}

}  // namespace tensor_objects

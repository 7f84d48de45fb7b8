// `TensorCheck`: a callable that compares a tensor's metadata.
#pragma once
#include "tensor_metadata.h"

namespace {

struct TensorCheck {
  PyObject_HEAD
  Metadata *expected;
  vectorcallfunc call;
};

PyObject *tensor_check_call(PyObject *self, PyObject *const *args, size_t n, PyObject *) {
  if (PyVectorcall_NARGS(n) != 1) {
    PyErr_SetString(PyExc_TypeError, "expected one value");
    return nullptr;
  }
  if (!is_tensor(args[0])) Py_RETURN_FALSE;
  return PyBool_FromLong(!((TensorCheck *)self)->expected->difference(args[0]));
}

PyObject *tensor_check_why(PyObject *self, PyObject *value) {
  if (!is_tensor(value)) return PyUnicode_FromString("type");
  const char *property = ((TensorCheck *)self)->expected->difference(value);
  if (!property) Py_RETURN_NONE;
  return PyUnicode_FromString(property);
}

PyObject *tensor_check_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *tensor, *stride_source = nullptr;
  if (!PyArg_ParseTuple(args, "O|O!", &tensor, &PyTuple_Type, &stride_source)) return nullptr;
  if (!is_tensor(tensor)) {
    PyErr_SetString(PyExc_TypeError, "expected a tensor");
    return nullptr;
  }
  Metadata *m = Metadata::of(tensor);
  TensorCheck *self = m ? (TensorCheck *)type->tp_alloc(type, 0) : nullptr;
  if (!self) {
    delete m;
    return nullptr;
  }
  self->expected = m;
  self->call = tensor_check_call;
  if (!stride_source) return (PyObject *)self;
  const Py_ssize_t rank = PyTuple_GET_SIZE(stride_source);
  m->dynamic = std::make_unique<DynamicDimensions>();
  for (Py_ssize_t i = 0; i < rank; i++) {
    long j = PyLong_AsLong(PyTuple_GET_ITEM(stride_source, i));
    m->dynamic->stride_source.push_back(j < 0 || j >= rank ? -1 : j);
  }
  m->dynamic->minimum = m->dynamic->maximum = m->sizes().vec();
  m->dynamic->minimum_stride = m->dynamic->maximum_stride = m->strides().vec();
  if (!PyErr_Occurred() && rank != (Py_ssize_t)m->rank)
    PyErr_SetString(PyExc_ValueError, "expected one entry for each dimension");
  if (PyErr_Occurred()) Py_CLEAR(self);
  return (PyObject *)self;
}

using Ends = std::vector<int64_t> DynamicDimensions::*;

PyObject *set_range(PyObject *self, PyObject *args, Ends lower, Ends upper) {
  DynamicDimensions *d = ((TensorCheck *)self)->expected->dynamic.get();
  Py_ssize_t dim;
  long long minimum, maximum;
  if (!PyArg_ParseTuple(args, "nLL", &dim, &minimum, &maximum)) return nullptr;
  if (!d || dim < 0 || dim >= (Py_ssize_t)(d->*lower).size()) {
    PyErr_SetString(PyExc_IndexError, "no such dimension");
    return nullptr;
  }
  (d->*lower)[dim] = minimum;
  (d->*upper)[dim] = maximum;
  Py_RETURN_NONE;
}

PyObject *tensor_check_set_bounds(PyObject *self, PyObject *args) {
  return set_range(self, args, &DynamicDimensions::minimum, &DynamicDimensions::maximum);
}

PyObject *tensor_check_set_stride_bounds(PyObject *self, PyObject *args) {
  return set_range(self, args, &DynamicDimensions::minimum_stride, &DynamicDimensions::maximum_stride);
}

PyObject *tensor_check_sizes(PyObject *self, PyObject *) {
  const Metadata &m = *((TensorCheck *)self)->expected;
  if (m.dynamic) Py_RETURN_NONE;
  PyObject *sizes = PyTuple_New(m.rank);
  for (size_t i = 0; sizes && i < m.rank; i++)
    PyTuple_SET_ITEM(sizes, i, PyLong_FromLongLong(m.sizes()[i]));
  return sizes;
}

void tensor_check_dealloc(PyObject *self) {
  delete ((TensorCheck *)self)->expected;
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef tensor_check_methods[] = {
    {"why", tensor_check_why, METH_O, "Return the name of the first property that differs, or None."},
    {"sizes", tensor_check_sizes, METH_NOARGS, "Return the expected sizes; None if some are dynamic."},
    {"set_bounds", tensor_check_set_bounds, METH_VARARGS,
     "(dimension, least, most): set the accepted sizes of a dimension. Requires the constructor's second "
     "argument: for each dimension, the one whose size times stride is its stride, or -1."},
    {"set_stride_bounds", tensor_check_set_stride_bounds, METH_VARARGS,
     "(dimension, least, most): set the accepted strides of a dimension whose stride is no such product. "
     "Requires the constructor's second argument."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject tensor_check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

// Plain values: numbers, text and constants, which have no state.
#pragma once
#include <Python.h>

namespace {

bool is_plain(PyObject *v) {
  if (!v) return true;
  PyTypeObject *t = Py_TYPE(v);
  return v == Py_None || t == &PyBool_Type || t == &PyLong_Type || t == &PyFloat_Type ||
         t == &PyUnicode_Type || t == &PyBytes_Type || t == &PyComplex_Type || v == Py_Ellipsis;
}

// True if two plain operands may be equal objects or one object, so that their identity is not
// determined by their values.
bool has_ambiguous_identity(PyObject *a, PyObject *b) {
  if (!a || !b || Py_TYPE(a) != Py_TYPE(b)) return false;
  return a != Py_None && a != Py_Ellipsis && !PyBool_Check(a);
}

// Returns an equal number or string that is a new object, even for small integers.
PyObject *fresh_plain(PyObject *, PyObject *value) {
  if (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value)) {
    PyObject *copy = PyUnicode_New(PyUnicode_GET_LENGTH(value), PyUnicode_MAX_CHAR_VALUE(value));
    if (copy && PyUnicode_CopyCharacters(copy, 0, value, 0, PyUnicode_GET_LENGTH(value)) < 0)
      Py_CLEAR(copy);
    return copy;
  }
  if (PyFloat_CheckExact(value)) return PyFloat_FromDouble(PyFloat_AS_DOUBLE(value));
  if (!PyLong_CheckExact(value)) {
    PyErr_SetString(PyExc_TypeError, "expected an int, a float or a text that is not empty");
    return nullptr;
  }
  PyLongObject *source = (PyLongObject *)value;
#if PY_VERSION_HEX >= 0x030C0000
  Py_ssize_t digits = (Py_ssize_t)(source->long_value.lv_tag >> 3);
  PyLongObject *copy = _PyLong_New(digits);
  if (!copy) return nullptr;
  for (Py_ssize_t i = 0; i < (digits ? digits : 1); i++)
    copy->long_value.ob_digit[i] = digits ? source->long_value.ob_digit[i] : 0;
  copy->long_value.lv_tag = source->long_value.lv_tag;
#else
  Py_ssize_t size = Py_SIZE(source), digits = size < 0 ? -size : size;
  PyLongObject *copy = _PyLong_New(digits);
  if (!copy) return nullptr;
  for (Py_ssize_t i = 0; i < (digits ? digits : 1); i++) copy->ob_digit[i] = digits ? source->ob_digit[i] : 0;
  Py_SET_SIZE(copy, size);
#endif
  return (PyObject *)copy;
}

}  // namespace

// Access to classes and attributes of objects that runs no code of the program.
#pragma once
#include "frames.h"

namespace {

PyObject *lookup_in_type(PyObject *, PyObject *args) {
  PyObject *type, *name;
  if (!PyArg_ParseTuple(args, "O!U", &PyType_Type, &type, &name)) return nullptr;
  PyObject *found = _PyType_Lookup((PyTypeObject *)type, name);
  if (!found && PyErr_Occurred()) return nullptr;
  return Py_NewRef(found ? found : null_marker);
}

// Returns the dictionary of an instance without its class's `__dict__` property. None for classes,
// which store their attributes differently.
PyObject *instance_dict(PyObject *, PyObject *value) {
  if (PyType_Check(value)) Py_RETURN_NONE;
  PyObject *found = PyObject_GenericGetDict(value, nullptr);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  Py_RETURN_NONE;
}

// `isinstance` by the class of a value alone: `isinstance` reads the value's `__class__` as well.
PyObject *is_of(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "expected a value and a class, or several");
    return nullptr;
  }
  PyObject *type = (PyObject *)Py_TYPE(args[0]);
  int found = type == args[1] ? 1 : PyObject_IsSubclass(type, args[1]);
  return found < 0 ? nullptr : PyBool_FromLong(found);
}

}  // namespace

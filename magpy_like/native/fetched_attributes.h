// Attributes of variables that a guard has fetched.
#pragma once
#include <Python.h>

namespace {

// Returns an entry of an instance's dictionary, without properties and methods of its class.
PyObject *instance_value(PyObject *instance, PyObject *name) {
  PyObject **dict_slot = _PyObject_GetDictPtr(instance);
  return dict_slot && *dict_slot ? PyDict_GetItemWithError(*dict_slot, name) : nullptr;
}

PyObject *attribute(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "expected an instance and a name");
    return nullptr;
  }
  PyObject *found = instance_value(args[0], args[1]);
  if (!found && !PyErr_Occurred()) PyErr_SetObject(PyExc_AttributeError, args[1]);
  return Py_XNewRef(found);
}

PyObject *lacks(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "expected an instance and names");
    return nullptr;
  }
  for (Py_ssize_t i = 1; i < count; i++) {
    if (instance_value(args[0], args[i])) Py_RETURN_FALSE;
    if (PyErr_Occurred()) return nullptr;
  }
  Py_RETURN_TRUE;
}

}  // namespace

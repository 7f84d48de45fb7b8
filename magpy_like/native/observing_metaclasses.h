// Classes whose metaclass, code of the program, would see what the monitor does with them.
#pragma once
#include <Python.h>

namespace {

// True if a class overrides one of `type`'s methods by code of the program.
bool overrides(PyTypeObject *meta, const char *method) {
  PyObject *name = PyUnicode_InternFromString(method);
  PyObject *found = name ? _PyType_Lookup(meta, name) : nullptr;
  Py_XDECREF(name);
  if (!found) PyErr_Clear();
  return found && Py_TYPE(found) != &PyWrapperDescr_Type && Py_TYPE(found) != &PyMethodDescr_Type;
}

// True for a metaclass that sees uses of its classes, and so those by the monitor: it defines
// comparison, hash or attribute access.
bool observes_its_classes(PyTypeObject *meta) {
  if (meta == &PyType_Type || !PyType_IsSubtype(meta, &PyType_Type)) return false;
  if (meta->tp_richcompare != PyType_Type.tp_richcompare &&
      (overrides(meta, "__eq__") || overrides(meta, "__ne__")))
    return true;
  if (meta->tp_hash != PyType_Type.tp_hash && overrides(meta, "__hash__")) return true;
  return meta->tp_getattro != PyType_Type.tp_getattro && overrides(meta, "__getattribute__");
}

// True if one of the values is such a class or an instance of one.
bool hold_observed_class(PyObject **values, int count) {
  for (int i = 0; i < count; i++) {
    if (!values[i]) continue;
    PyTypeObject *kind = Py_TYPE(values[i]);
    if (Py_TYPE(kind) != &PyType_Type && observes_its_classes(Py_TYPE(kind))) return true;
    if (kind != &PyType_Type && PyType_Check(values[i]) && observes_its_classes(kind)) return true;
  }
  return false;
}

}  // namespace

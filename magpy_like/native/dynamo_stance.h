// Whether `torch.compiler.set_stance("force_eager")` is in effect.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace {

// The stance is a global variable of a module that `import torch` does not load. A program that has set
// one has loaded it. It is replaced when it is set, so what is known about one is kept with it.
PyObject *stance_module, *stance_variable, *stance_name;  // interned names
PyObject *dynamo_globals;                                 // owned; null until the module is loaded
PyObject *known_stance;                                   // owned
bool known_forces_eager;

bool init_stance() {
  stance_module = PyUnicode_InternFromString("torch._dynamo.eval_frame");
  stance_variable = PyUnicode_InternFromString("_stance");
  stance_name = PyUnicode_InternFromString("stance");
  return stance_module && stance_variable && stance_name;
}

// Borrowed; null without an exception if nothing can have set one.
PyObject *current_stance() {
  if (!dynamo_globals) {
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *module = modules ? PyDict_GetItemWithError(modules, stance_module) : nullptr;
    if (!module || !PyModule_Check(module)) return nullptr;
    dynamo_globals = Py_NewRef(PyModule_GetDict(module));
  }
  return PyDict_GetItemWithError(dynamo_globals, stance_variable);
}

bool is_eager_forced() {
  PyObject *stance = current_stance();
  if (stance == known_stance) return known_forces_eager;
  if (!stance) {
    PyErr_Clear();
    return false;
  }
  Py_INCREF(stance);
  PyObject *name = PyObject_GetAttr(stance, stance_name);
  bool forces = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "force_eager") == 0;
  Py_XDECREF(name);
  PyErr_Clear();
  PyObject *before = known_stance;
  known_forces_eager = forces;
  known_stance = stance;
  Py_XDECREF(before);
  return forces;
}

PyObject *eager_is_forced(PyObject *, PyObject *) { return PyBool_FromLong(is_eager_forced()); }

}  // namespace

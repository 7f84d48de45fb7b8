// Replaces references in objects that Python cannot change.
#pragma once
#include "frames.h"

namespace {

struct Count {
  PyObject *wanted;
  Py_ssize_t found;
};

int count_reference(PyObject *value, void *count) {
  Count *c = (Count *)count;
  if (value == c->wanted) c->found++;
  return 0;
}

Py_ssize_t occurrences(PyObject **slots, Py_ssize_t count, PyObject *value) {
  Py_ssize_t found = 0;
  for (Py_ssize_t i = 0; i < count; i++) found += slots[i] == value;
  return found;
}

// A context variable keeps a pointer to its value, without a reference to it, until its thread enters
// or changes a context. Has the variables of all threads look up their values.
void forget_values_of_context_variables() {
  PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; thread; thread = PyThreadState_Next(thread)) thread->context_ver++;
}

// A generator, coroutine or asynchronous generator: they have the same layout.
bool has_suspended_frame(PyObject *holder) {
  return PyGen_CheckExact(holder) || PyCoro_CheckExact(holder) || PyAsyncGen_CheckExact(holder);
}

// Replaces the references to `old` in the memory of `holder`: a tuple, a slice, a suspended generator.
// tp_traverse reports how many references there are; unless the same number of words holds the
// pointer, nothing is replaced.
PyObject *replace_references(PyObject *, PyObject *args) {
  PyObject *holder, *old, *replacement;
  if (!PyArg_ParseTuple(args, "OOO", &holder, &old, &replacement)) return nullptr;
  PyTypeObject *type = Py_TYPE(holder);
  if (!PyObject_IS_GC(holder) || !type->tp_traverse || PyType_Check(holder)) Py_RETURN_FALSE;
  PyObject **slots = (PyObject **)((char *)holder + sizeof(PyObject));
  Py_ssize_t bytes = type->tp_basicsize - sizeof(PyObject);
  if (PyFrame_Check(holder)) Py_RETURN_FALSE;
  if (type->tp_itemsize && !has_suspended_frame(holder)) {  // these have items, but no `ob_size`
    Py_ssize_t size = Py_SIZE(holder);
    bytes += type->tp_itemsize * (size < 0 ? -size : size);
  }
  Py_ssize_t count = bytes / (Py_ssize_t)sizeof(PyObject *);
  if (has_suspended_frame(holder)) {
    _PyInterpreterFrame *f = (_PyInterpreterFrame *)((PyGenObject *)holder)->gi_iframe;
    if (((PyGenObject *)holder)->gi_frame_state >= FRAME_EXECUTING) Py_RETURN_FALSE;
    slots = f->localsplus;
    count = f->stacktop;
  }
  Count reported_references{old, 0};
  type->tp_traverse(holder, count_reference, &reported_references);
  if (!reported_references.found || occurrences(slots, count, old) != reported_references.found)
    Py_RETURN_FALSE;
  forget_values_of_context_variables();  // `holder` may be part of a context
  for (Py_ssize_t i = 0; i < count; i++) {
    if (slots[i] != old) continue;
    slots[i] = Py_NewRef(replacement);
    Py_DECREF(old);
  }
  Py_RETURN_TRUE;
}

PyObject *tuple_set(PyObject *, PyObject *args) {
  PyObject *tuple, *value;
  Py_ssize_t at;
  if (!PyArg_ParseTuple(args, "O!nO", &PyTuple_Type, &tuple, &at, &value)) return nullptr;
  if (at < 0 || at >= PyTuple_GET_SIZE(tuple)) return PyErr_Format(PyExc_IndexError, "no element %zd", at);
  PyObject *old = PyTuple_GET_ITEM(tuple, at);
  PyTuple_SET_ITEM(tuple, at, Py_NewRef(value));
  Py_DECREF(old);
  Py_RETURN_NONE;
}

}  // namespace

// Garbage collections while a program runs under the monitor, which suspend it.
#pragma once
#include "monitor_state.h"

namespace {

// Begins or ends the effect of a garbage collection: its finalizers are not followed, nor is its code
// part of the program.
int change_suspension(Monitor *m, long difference) {
  PyObject *depth = PyObject_GetAttrString(m->suspension, "depth");
  if (!depth) return -1;
  PyObject *changed = PyLong_FromLong(PyLong_AsLong(depth) + difference);
  Py_DECREF(depth);
  int failed = changed ? PyObject_SetAttrString(m->suspension, "depth", changed) : -1;
  Py_XDECREF(changed);
  return failed;
}

PyObject *on_collection(PyObject *self, PyObject *args, bool begins) {
  Monitor *m = (Monitor *)self;
  const char *phase;
  PyObject *info;
  if (!PyArg_ParseTuple(args, "sO", &phase, &info)) return nullptr;
  bool starts = strcmp(phase, "start") == 0;
  if (m->thread == PyThread_get_thread_ident() && m->suspension && starts == begins &&
      m->is_collecting != begins) {
    m->is_collecting = begins;
    if (change_suspension(m, begins ? 1 : -1) < 0) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject *monitor_before_collection(PyObject *self, PyObject *args) {
  return on_collection(self, args, true);
}

PyObject *monitor_after_collection(PyObject *self, PyObject *args) {
  return on_collection(self, args, false);
}

}  // namespace

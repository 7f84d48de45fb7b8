// Code of the program that runs within the trace hook, and is traced.
#pragma once
#include "monitor_state.h"

namespace {

// Lets code of the program run in the trace hook, traced.
struct TracedCode {
  PyThreadState *thread = PyThreadState_Get();

  TracedCode() { PyThreadState_LeaveTracing(thread); }
  ~TracedCode() { PyThreadState_EnterTracing(thread); }
};

// Releases a reference that may be the last one. Code that runs when the object dies (a destructor, a
// callback of a weak reference, the rest of a generator) is part of the program: it is traced. If an
// exception waits, the recording is over: a destructor would swallow it.
void release(Monitor *m, PyObject *value) {
  if (!value) return;
  if (m->work->holds_exception()) {
    Py_DECREF(value);
    return;
  }
  TracedCode traced;
  Py_DECREF(value);
}

}  // namespace

// Isolated runs: a part of the program runs within the trace hook, up to an instruction.
#pragma once
#include "monitor_state.h"
#include "traced_code.h"

namespace {

constexpr long MAX_ISOLATED_INSTRUCTIONS = 4'000'000;  // a branch that is never taken may not terminate

PyObject *abandoned_error;  // exception type that unwinds an abandoned run

// Every further instruction of an abandoned run raises, those of handlers and finally clauses too.
int raise_abandoned() {
  PyErr_SetNone(abandoned_error);
  return -1;
}

// Return value of the trace function.
int trace_result(const Monitor *m) { return m->isolated_run.abandoned ? raise_abandoned() : 0; }

// Ends the isolated run at its target, with the offset, the locals and the operands there.
int end_isolated_run(Monitor *m, _PyInterpreterFrame *f, int offset) {
  PyObject *locals = make_locals_tuple(f);
  PyObject *stack = make_stack_tuple(f);
  m->isolated_run.reached = Py_BuildValue("(iNN)", offset, locals, stack);
  m->isolated_run.abandoned = true;
  return raise_abandoned();
}

// Unwinds the current isolated run.
PyObject *monitor_abandon(PyObject *self, PyObject *) {
  ((Monitor *)self)->isolated_run.abandoned = true;
  Py_RETURN_NONE;
}

PyObject *call_traced(PyObject *function) {
  TracedCode traced;
  return PyObject_CallNoArgs(function);
}

// Calls a function within the trace hook and traces it.
PyObject *monitor_explore(PyObject *self, PyObject *args) {
  Monitor *m = (Monitor *)self;
  PyObject *function;
  int end_offset, other_end_offset;
  if (!PyArg_ParseTuple(args, "O!ii", &PyFunction_Type, &function, &end_offset, &other_end_offset))
    return nullptr;
  if (m->work->holds_exception() || m->interruption.type) Py_RETURN_NONE;  // the recording is about to end
  IsolatedRun outer_run = m->isolated_run;
  Skip outer_skip = m->skip;
  m->skip = Skip();
  m->isolated_run = IsolatedRun();
  m->isolated_run.code = PyFunction_GET_CODE(function);
  m->isolated_run.end_offset = end_offset;
  m->isolated_run.other_end_offset = other_end_offset;
  if (m->dispatched) m->accounted = *m->dispatched;
  // Like `sys.call_tracing`, which does not restore tracing on Python 3.11.
  // An unwound handler does not reach the instruction that restores the handled exception.
  PyObject *handled_exception = PyErr_GetHandledException();
  PyObject *value = call_traced(function);
  PyErr_SetHandledException(handled_exception);
  Py_XDECREF(handled_exception);
  IsolatedRun ended = m->isolated_run;
  m->isolated_run = outer_run;
  m->skip = outer_skip;
  if (m->dispatched) m->accounted = *m->dispatched;
  if (m->interruption.type) {
    PyErr_Clear();
    Py_XDECREF(value);
    Py_XDECREF(ended.reached);
    m->interruption.raise();
    return nullptr;
  }
  if (!value && ended.abandoned) PyErr_Clear();
  if (!value && !ended.abandoned) return nullptr;
  Py_XDECREF(value);
  if (ended.reached) return ended.reached;
  Py_RETURN_NONE;
}

}  // namespace

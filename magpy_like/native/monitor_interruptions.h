// Interruptions of a monitored program: the recording ends, and the program receives them.
#pragma once
#include "asynchronous.h"
#include "monitor_state.h"

namespace {

Interrupts *interrupts;  // deferred interruptions; set at import

PyObject *use_interrupts(PyObject *, PyObject *address) {
  interrupts = (Interrupts *)PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

// Ends the recording: a signal's handler has run in the program, and raised `error` or None.
void report_interruption(Monitor *m, PyFrameObject *frame, PyObject *error) {
  PyObject *result =
      PyObject_CallFunctionObjArgs(m->on_interruption, (PyObject *)frame, error, nullptr);
  if (!result) PyErr_Clear();
  Py_XDECREF(result);
}

// Handles an exception of a callback. Callbacks handle their own errors, so it is an interruption
// (KeyboardInterrupt, SystemExit, an exception of a signal handler), which is for the program. It may
// precede the first line of a callback, whose event is then lost: the recording ends. It is raised
// after the event, or after the isolated run.
void handle_callback_error(Monitor *m, PyFrameObject *frame) {
  Interruption interruption;
  PyErr_Fetch(&interruption.type, &interruption.value, &interruption.traceback);
  PyErr_NormalizeException(&interruption.type, &interruption.value, &interruption.traceback);
  if (interruption.traceback) PyException_SetTraceback(interruption.value, interruption.traceback);
  PyObject *error =
      PyObject_CallFunctionObjArgs(m->on_interruption, (PyObject *)frame, interruption.value, nullptr);
  if (!error) {
    PyErr_Clear();
  } else if (PyExceptionInstance_Check(error)) {  // the exception that another one carries
    Py_XSETREF(interruption.type, Py_NewRef((PyObject *)Py_TYPE(error)));
    Py_XSETREF(interruption.value, Py_NewRef(error));
    Py_XSETREF(interruption.traceback, PyException_GetTraceback(error));
  }
  Py_XDECREF(error);
  if (m->isolated_run.code)
    m->isolated_run.abandoned = true;
  else
    m->running = false;
  if (m->interruption.raise()) PyErr_Clear();
  m->interruption = interruption;
}

// Drops the result of a callback.
void consume(Monitor *m, PyFrameObject *frame, PyObject *result) {
  if (!result) handle_callback_error(m, frame);
  Py_XDECREF(result);
}

// True for an exception that begins in this frame and comes from outside: a KeyboardInterrupt, unless a
// `raise` raises it, or an exception that another thread has sent. Isolated runs are own work, during
// which what is sent waits; a KeyboardInterrupt does not if the program has set its handler meanwhile.
bool is_interruption(Monitor *m, PyFrameObject *frame, PyObject *exception) {
  if (!exception || !PyTuple_Check(exception) || PyTuple_GET_SIZE(exception) != 3) return false;
  if (m->isolated_run.abandoned) return false;  // the exception that unwinds it
  PyObject *error = PyTuple_GET_ITEM(exception, 1), *traceback = PyTuple_GET_ITEM(exception, 2);
  if (PyTraceBack_Check(traceback) && ((PyTracebackObject *)traceback)->tb_next) return false;
  int at = PyFrame_GetLasti(frame) / 2;
  const std::vector<Instruction> &code = decode(*m->codes, code_of(internal_frame(frame)));
  if (at < 0 || at >= (int)code.size()) return false;
  int opcode = code[at].opcode;
  if (PyErr_GivenExceptionMatches(PyTuple_GET_ITEM(exception, 0), PyExc_KeyboardInterrupt))
    return opcode != RAISE_VARARGS && opcode != RERAISE;
  return !m->isolated_run.code && checks_for_requests(opcode) && PyExceptionInstance_Check(error) &&
         is_made_without_arguments(error);
}

// Runs the handlers of signals that have been passed on to Python, as the next instruction of the
// program would; else they would run in the next callback. True if one has raised an exception.
bool run_signal_handlers(Monitor *m, PyFrameObject *frame) {
  if (PyErr_CheckSignals() < 0) {
    handle_callback_error(m, frame);
    return m->interruption.raise();
  }
  report_interruption(m, frame, Py_None);
  return false;
}

// Ends the recording: the interpreter is about to raise in the program what another thread has sent.
void report_exception_to_come(Monitor *m, PyFrameObject *frame) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  report_interruption(m, frame, Py_None);
  PyErr_Restore(type, value, traceback);
}

}  // namespace

// A call of the program under the monitor.
#pragma once
#include "call_as_caller.h"

namespace {

// The changes to the process while a program runs under the monitor. They are made and undone here,
// where no signal handler and no trace function can raise in between.
struct Scope {
  Monitor *monitor;
  PyObject *active, *outer = nullptr;       // owned: thread-local variable, and its earlier value
  PyObject *callbacks = nullptr;            // owned: gc.callbacks
  PyObject *before = nullptr, *after = nullptr;  // owned: the monitor's own
  PyObject *counting = nullptr;             // owned: handle of the count of operators
  Py_tracefunc trace_function = nullptr;    // the earlier one
  PyObject *trace_object = nullptr;         // owned: the object that `sys.gettrace` returns
  Monitor *outer_monitor = nullptr;         // the monitor that was installed before

  bool was_entered = false;

  bool enter(PyObject *run, PyObject *start_counting) {
    outer = PyObject_GetAttrString(active, "run");
    if (!outer) PyErr_Clear();
    PyObject *gc = PyImport_ImportModule("gc");
    callbacks = gc ? PyObject_GetAttrString(gc, "callbacks") : nullptr;
    Py_XDECREF(gc);
    before = PyObject_GetAttrString((PyObject *)monitor, "before_collection");
    after = PyObject_GetAttrString((PyObject *)monitor, "after_collection");
    if (!callbacks || !before || !after) return false;
    if (!(counting = PyObject_CallNoArgs(start_counting))) return false;
    if (PyObject_SetAttrString(active, "run", run) < 0) return false;
    if (PyList_Insert(callbacks, 0, before) < 0 || PyList_Append(callbacks, after) < 0) return false;
    PyThreadState *thread = PyThreadState_Get();
    trace_function = thread->c_tracefunc;
    trace_object = Py_XNewRef(thread->c_traceobj);
    if (monitor->dispatched) monitor->accounted = *monitor->dispatched;
    monitor->running = true;
    if (monitor->interrupts) monitor->interrupts->passed = false;  // of signals before the run
    was_entered = true;
    outer_monitor = installed;
    installed = (Monitor *)Py_NewRef((PyObject *)monitor);
    PyEval_SetTrace(trace, trace_object);
    return true;
  }

  // Undoes all changes; keeps an exception that is raised.
  void leave(PyObject *stop_counting) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    monitor->running = false;
    if (was_entered) {
      // Unless the program has set another trace function, which stays.
      if (PyThreadState_Get()->c_tracefunc == trace) PyEval_SetTrace(trace_function, trace_object);
      installed = outer_monitor;
      Py_DECREF(monitor);
    }
    end_requests(monitor);
    drop_references(monitor);
    if (callbacks) {
      remove_callback(before);
      remove_callback(after);
    }
    if (counting) Py_XDECREF(PyObject_CallOneArg(stop_counting, counting));
    PyErr_Clear();
    PyObject_SetAttrString(active, "run", outer ? outer : Py_None);
    PyErr_Clear();
    Py_XDECREF(outer);
    Py_XDECREF(callbacks);
    Py_XDECREF(before);
    Py_XDECREF(after);
    Py_XDECREF(counting);
    Py_XDECREF(trace_object);
    Py_CLEAR(monitor->suspension);
    PyErr_Restore(type, value, traceback);
  }

  void remove_callback(PyObject *callback) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(callbacks); i++) {
      PyObject *item = PyList_GET_ITEM(callbacks, i);
      bool is_own = PyCFunction_Check(item) && PyCFunction_GET_SELF(item) == (PyObject *)monitor &&
                    PyCFunction_GET_FUNCTION(item) == PyCFunction_GET_FUNCTION(callback);
      if (!is_own) continue;
      PyList_SetSlice(callbacks, i, i + 1, nullptr);
      return;
    }
  }
};

PyObject *monitor_run(PyObject *self, PyObject *args) {
  Monitor *m = (Monitor *)self;
  PyObject *active, *run, *suspension, *counter, *start_counting, *stop_counting, *call;
  if (!PyArg_ParseTuple(args, "OOOO!OOO!", &active, &run, &suspension, &PyLong_Type, &counter,
                        &start_counting, &stop_counting, &PyTuple_Type, &call))
    return nullptr;
  m->dispatched = (const unsigned long long *)PyLong_AsVoidPtr(counter);
  if (PyErr_Occurred()) return nullptr;
  m->work = interrupts->own_work();
  m->interrupts = m->work->is_main ? interrupts : nullptr;
  m->thread = PyThread_get_thread_ident();
  m->suspension = Py_NewRef(suspension);
  Py_INCREF(self);
  Scope scope{m, Py_NewRef(active)};
  PyObject *result = scope.enter(run, start_counting) ? call_as_caller(nullptr, call) : nullptr;
  scope.leave(stop_counting);
  Py_DECREF(scope.active);
  Py_DECREF(self);
  return result;
}

}  // namespace

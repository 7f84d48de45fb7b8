// Deferred signals: no Python signal handler runs inside the monitor and the compiler.
//
// CPython runs a signal handler between two instructions of the main thread, whatever code that is, and
// torch's tracing is not written for an exception at any instruction: it leaves modes on its stacks,
// and some of its callbacks from C++ abort the process. During own work, signals are therefore only
// noted, in place of CPython's own C handler; they are passed on to it where the program continues.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>

#include "interrupts.h"

namespace {

Interrupts interrupts;

#ifndef NSIG
#define NSIG 65
#endif

std::atomic<bool> arrived[NSIG];
struct sigaction originals[NSIG];
bool is_replaced[NSIG];
int scopes = 0;            // of the main thread; only changed there
unsigned long main_thread;
PyObject *getsignal;       // owned: signal.getsignal

bool is_main_thread() { return PyThread_get_thread_ident() == main_thread; }

void on_signal(int number) {
  if (interrupts.depth.load() > 0) {
    arrived[number].store(true);
    interrupts.waiting.store(true);
  } else if (is_replaced[number] && originals[number].sa_handler) {
    interrupts.passed.store(true);
    originals[number].sa_handler(number);
  }
}

void deliver() {
  if (!interrupts.waiting.exchange(false)) return;
  interrupts.passed.store(true);
  for (int number = 1; number < NSIG; number++)
    if (arrived[number].exchange(false) && originals[number].sa_handler)
      originals[number].sa_handler(number);
}

// Replaces the C handler of each signal that has a handler in Python.
int replace_handlers() {
  for (int number = 1; number < NSIG; number++) {
    struct sigaction current;
    if (sigaction(number, nullptr, &current) != 0) continue;
    if (current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN) continue;
    if (current.sa_handler == on_signal || current.sa_flags & SA_SIGINFO) continue;
    PyObject *handler = PyObject_CallFunction(getsignal, "i", number);
    if (!handler) return -1;
    bool in_python = PyCallable_Check(handler);
    Py_DECREF(handler);
    if (!in_python) continue;  // of C code, such as faulthandler
    originals[number] = current;
    is_replaced[number] = true;
    current.sa_handler = on_signal;
    sigaction(number, &current, nullptr);
  }
  return 0;
}

void restore_handlers() {
  for (int number = 1; number < NSIG; number++) {
    if (!is_replaced[number]) continue;
    struct sigaction current;
    if (sigaction(number, nullptr, &current) == 0 && current.sa_handler == on_signal)
      sigaction(number, &originals[number], nullptr);
    is_replaced[number] = false;
  }
}

PyObject *enter(PyObject *, PyObject *) {
  if (is_main_thread()) {
    if (!scopes && replace_handlers() < 0) return nullptr;
    scopes++;
    interrupts.depth++;
  }
  Py_RETURN_NONE;
}

PyObject *leave(PyObject *, PyObject *const *, Py_ssize_t) {
  if (is_main_thread() && scopes) {
    interrupts.depth--;
    if (!--scopes) restore_handlers();
    if (!interrupts.depth) deliver();
  }
  Py_RETURN_FALSE;
}

// Runs the handlers of the signals that have arrived; raises what one of them raises.
PyObject *check(PyObject *, PyObject *) {
  if (!is_main_thread() || !interrupts.waiting.load()) Py_RETURN_NONE;
  int depth = interrupts.depth.exchange(0);
  deliver();
  int failed = PyErr_CheckSignals();
  interrupts.depth = depth;
  if (failed) return nullptr;
  Py_RETURN_NONE;
}

PyObject *address(PyObject *, PyObject *) { return PyLong_FromVoidPtr(&interrupts); }

PyObject *note_main_thread(PyObject *, PyObject *ident) {
  unsigned long value = PyLong_AsUnsignedLong(ident);
  if (PyErr_Occurred()) return nullptr;
  main_thread = value;
  Py_RETURN_NONE;
}

PyMethodDef own_work_methods[] = {
    {"__enter__", enter, METH_NOARGS, "Defer the handlers of signals."},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, "Run them after the scope."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject own_work_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef methods[] = {
    {"check", check, METH_NOARGS, "Run the handlers of deferred signals; raise what they raise."},
    {"address", address, METH_NOARGS, "Return the address of the shared state."},
    {"note_main_thread", note_main_thread, METH_O, "Set the identifier of the main thread."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_interrupts", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_interrupts(void) {
  interrupts.deliver = deliver;
  interrupts.is_main_thread = is_main_thread;
  PyObject *signal = PyImport_ImportModule("signal");
  if (!signal) return nullptr;
  getsignal = PyObject_GetAttrString(signal, "getsignal");
  Py_DECREF(signal);
  if (!getsignal) return nullptr;
  own_work_type.tp_name = "_magpy_interrupts.OwnWork";
  own_work_type.tp_basicsize = sizeof(PyObject);
  own_work_type.tp_flags = Py_TPFLAGS_DEFAULT;
  own_work_type.tp_new = PyType_GenericNew;
  own_work_type.tp_methods = own_work_methods;
  if (PyType_Ready(&own_work_type) < 0) return nullptr;
  PyObject *m = PyModule_Create(&module);
  if (!m) return nullptr;
  PyObject *own_work = PyObject_CallNoArgs((PyObject *)&own_work_type);
  if (!own_work || PyModule_AddObjectRef(m, "own_work", own_work) < 0) Py_CLEAR(m);
  Py_XDECREF(own_work);
  return m;
}

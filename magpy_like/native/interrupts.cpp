// Deferred interruptions: no Python signal handler runs inside the monitor and the compiler, and no
// exception that another thread sends is raised there.
//
// CPython does both between two instructions, whatever code that is, and torch's tracing is not written
// for an exception at any instruction: it leaves modes on its stacks, and some of its callbacks from
// C++ abort the process. During own work, signals are therefore only noted, in place of CPython's own C
// handler, and exceptions go to a stand-in of the thread's state (interrupts.h). Both are passed on
// where the program continues.
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
#include <Python.h>
#include <pthread.h>
#include <signal.h>

#include "asynchronous.h"
#include "interrupts.h"

namespace {

Interrupts interrupts;

#ifndef NSIG
#define NSIG 65
#endif

std::atomic<bool> arrived[NSIG];
struct sigaction originals[NSIG];
bool is_replaced[NSIG];
unsigned long main_thread;
PyObject *getsignal;       // owned: signal.getsignal

thread_local OwnWork work_of_thread{&interrupts, 0, false};

OwnWork *own_work() {
  OwnWork *work = &work_of_thread;
  if (!work->scopes) {  // else they are known, and a fork keeps them
    work->thread = PyThread_get_thread_ident();
    work->is_main = work->thread == main_thread;
  }
  return work;
}

// In a forked process CPython deletes the states of other threads, and with them the stand-in.
void forget_stand_in() { work_of_thread.stand_in = nullptr; }

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
  OwnWork *work = own_work();
  if (!work->scopes) {
    if (work->is_main && replace_handlers() < 0) return nullptr;
    work->stand_in = PyThreadState_New(PyInterpreterState_Get());
    if (work->stand_in) withhold_requests(work->stand_in);
  }
  work->scopes++;
  work->set_depth(work->depth + 1);
  Py_RETURN_NONE;
}

void remove_stand_in(OwnWork *work) {
  PyThreadState *stand_in = work->stand_in;
  work->stand_in = nullptr;
  if (!stand_in) return;
  allow_requests(stand_in, PyInterpreterState_Get());
  PyThreadState_Clear(stand_in);
  PyThreadState_Delete(stand_in);
}

PyObject *leave(PyObject *, PyObject *const *, Py_ssize_t) {
  OwnWork *work = own_work();
  if (!work->scopes) Py_RETURN_FALSE;
  work->set_depth(work->depth - 1);
  if (!--work->scopes) {
    if (work->is_main) restore_handlers();
    work->pass_on();  // the scope may have begun within a callback
    remove_stand_in(work);
  }
  if (work->is_main && !work->depth) deliver();
  Py_RETURN_FALSE;
}

// Runs the handlers of the signals that have arrived; raises what one of them raises. An exception that
// another thread has sent is raised at the end of this call.
PyObject *check(PyObject *, PyObject *) {
  OwnWork *work = own_work();
  work->safe_points++;
  if (work->is_main && interrupts.waiting.load()) {
    int depth = interrupts.depth.exchange(0);
    deliver();
    int failed = PyErr_CheckSignals();
    interrupts.depth = depth;
    if (failed) return nullptr;
  }
  if (work->holds_exception()) {
    work->pass_on();
    work->stand_in->thread_id = work->thread;
  }
  Py_RETURN_NONE;
}

PyObject *is_at_own_work(PyObject *, PyObject *) { return PyBool_FromLong(own_work()->depth > 0); }

PyObject *is_sent(PyObject *, PyObject *error) { return PyBool_FromLong(was_sent(error)); }

PyObject *address(PyObject *, PyObject *) { return PyLong_FromVoidPtr(&interrupts); }

PyObject *note_main_thread(PyObject *, PyObject *ident) {
  unsigned long value = PyLong_AsUnsignedLong(ident);
  if (PyErr_Occurred()) return nullptr;
  main_thread = value;
  Py_RETURN_NONE;
}

PyMethodDef own_work_methods[] = {
    {"__enter__", enter, METH_NOARGS, "Defer interruptions."},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, "Pass them on."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject own_work_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef methods[] = {
    {"check", check, METH_NOARGS, "Run the handlers of deferred signals; raise what they raise, or another thread has sent."},
    {"is_at_own_work", is_at_own_work, METH_NOARGS, "True if interruptions of this thread wait."},
    {"is_sent", is_sent, METH_O, "True if another thread has sent the exception to this one."},
    {"address", address, METH_NOARGS, "Return the address of the shared state."},
    {"note_main_thread", note_main_thread, METH_O, "Set the identifier of the main thread."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_interrupts", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_interrupts(void) {
  interrupts.deliver = deliver;
  interrupts.own_work = own_work;
  pthread_atfork(nullptr, nullptr, forget_stand_in);
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

// Counts the operators that torch dispatches on this thread, for the monitor run to compare with
// those that it was told of: one that native code ran out of sight must not be missed.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/record_function.h>

namespace {

thread_local unsigned long long dispatched = 0;

std::unique_ptr<at::ObserverContext> count_one(const at::RecordFunction &) {
  dispatched++;
  return nullptr;
}

PyObject *start(PyObject *, PyObject *) {
  auto callback = at::RecordFunctionCallback(count_one).scopes({at::RecordScope::FUNCTION});
  return PyLong_FromUnsignedLongLong(at::addThreadLocalCallback(callback));
}

PyObject *stop(PyObject *, PyObject *handle) {
  unsigned long long h = PyLong_AsUnsignedLongLong(handle);
  if (PyErr_Occurred()) return nullptr;
  at::removeCallback(h);
  Py_RETURN_NONE;
}

PyObject *counter(PyObject *, PyObject *) { return PyLong_FromVoidPtr(&dispatched); }

PyMethodDef methods[] = {
    {"start", start, METH_NOARGS, "Begin to count; returns a handle for `stop`."},
    {"stop", stop, METH_O, "End the counting that the handle stands for."},
    {"counter", counter, METH_NOARGS, "The address of this thread's count."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_dispatch", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_dispatch(void) { return PyModule_Create(&module); }

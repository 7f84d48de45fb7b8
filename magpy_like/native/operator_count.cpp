// Counter of the operators that torch dispatches on this thread. The monitor compares it with the
// reported operators to detect those that native code ran unreported.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/record_function.h>

namespace {

thread_local unsigned long long dispatch_count = 0;

std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction &) {
  dispatch_count++;
  return nullptr;
}

PyObject *start(PyObject *, PyObject *) {
  auto callback = at::RecordFunctionCallback(count_operator).scopes({at::RecordScope::FUNCTION});
  return PyLong_FromUnsignedLongLong(at::addThreadLocalCallback(callback));
}

PyObject *stop(PyObject *, PyObject *handle) {
  unsigned long long value = PyLong_AsUnsignedLongLong(handle);
  if (PyErr_Occurred()) return nullptr;
  at::removeCallback(value);
  Py_RETURN_NONE;
}

PyObject *counter(PyObject *, PyObject *) { return PyLong_FromVoidPtr(&dispatch_count); }

PyMethodDef methods[] = {
    {"start", start, METH_NOARGS, "Start counting; return a handle for `stop`."},
    {"stop", stop, METH_O, "Stop the counting of a handle."},
    {"counter", counter, METH_NOARGS, "Return the address of this thread's count."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_dispatch", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_dispatch(void) { return PyModule_Create(&module); }

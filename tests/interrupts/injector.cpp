// Calls a function at the n-th point at which CPython would run a signal handler.
//
// The interpreter runs signal handlers and pending calls at the same points: where a function is
// entered, after a call, and at a jump backwards. A pending call that adds itself again runs at each.
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#undef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#include <opcode.h>

namespace {

struct {
  PyObject *function = nullptr;  // owned; called once
  long points = 0, target = -1;
  bool armed = false, queued = false;
  const void *frame = nullptr, *instruction = nullptr;  // of the last point
} state;

int at_point(void *);

void enqueue() {
  if (!state.queued) state.queued = Py_AddPendingCall(at_point, nullptr) == 0;
}

// Python 3.11 enters a traced function only once no call is pending: `resume` continues after that.
bool enters_traced_function(const _PyInterpreterFrame *frame) {
#if PY_VERSION_HEX < 0x030C0000
  if (!frame || !PyThreadState_Get()->cframe->use_tracing) return false;
  int opcode = _Py_OPCODE(*frame->prev_instr);
  return opcode == RESUME || opcode == RESUME_QUICK;
#else
  return false;
#endif
}

int at_point(void *) {
  state.queued = false;
  if (!state.armed) return 0;
  _PyInterpreterFrame *frame = PyThreadState_Get()->cframe->current_frame;
  const void *instruction = frame ? frame->prev_instr : nullptr;
  bool is_new = frame != state.frame || instruction != state.instruction;
  if (is_new) {
    state.frame = frame;
    state.instruction = instruction;
    if (state.points++ == state.target) {
      state.armed = false;
      PyObject *function = state.function;
      state.function = nullptr;
      PyObject *result = PyObject_CallNoArgs(function);
      Py_DECREF(function);
      Py_XDECREF(result);
      return result ? 0 : -1;
    }
  }
  if (!enters_traced_function(frame)) enqueue();
  return 0;
}

PyObject *arm(PyObject *, PyObject *args) {
  long target;
  PyObject *function;
  if (!PyArg_ParseTuple(args, "lO", &target, &function)) return nullptr;
  Py_XSETREF(state.function, Py_NewRef(function));
  state.points = 0;
  state.target = target;
  state.armed = true;
  state.frame = nullptr;
  enqueue();
  Py_RETURN_NONE;
}

PyObject *resume(PyObject *, PyObject *) {
  if (state.armed) enqueue();
  Py_RETURN_NONE;
}

PyObject *disarm(PyObject *, PyObject *) {
  state.armed = false;
  Py_CLEAR(state.function);
  return PyLong_FromLong(state.points);
}

PyMethodDef methods[] = {
    {"arm", arm, METH_VARARGS,
     "(n, function): call the function at the n-th point from now, on the main thread; n < 0: never."},
    {"resume", resume, METH_NOARGS, "Continue after the entry of a traced function."},
    {"disarm", disarm, METH_NOARGS, "Return the number of points passed since `arm`."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_injector", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_injector(void) { return PyModule_Create(&module); }

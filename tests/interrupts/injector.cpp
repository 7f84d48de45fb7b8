// Interrupts a call at a chosen point, at which CPython would run a signal handler or raise what another
// thread has sent.
//
// The interpreter does so, and runs pending calls, at the same points: where a function is entered,
// after a call, and at a jump backwards. A pending call that adds itself again runs at each, and several
// times in a row: passes of one point with none in between, as in a loop that enters no function, count
// once.
#include "interpreter_frame.h"

#include <cstring>
#include <vector>

#include "interrupts.h"

namespace {

// A point that was passed: its instruction, and the number of the next safe point if the thread was at
// own work; else -1, as an interruption comes there and then.
struct Point {
  PyCodeObject *code;  // owned; null outside all frames
  int offset;
  long safe_point;
};

// The point to interrupt: an instruction, and how often it is passed before.
struct Target {
  PyObject *file = nullptr, *name = nullptr;  // owned
  int line = 0, offset = 0;
  long remaining = 0;
};

struct {
  PyObject *interruption = nullptr;  // owned: an exception to send, or a function to call; used once
  bool armed = false, queued = false, records = false;
  const void *frame = nullptr, *instruction = nullptr;  // of the last point
  Target target;
  std::vector<Point> passed;
} state;

OwnWork *work;  // of the main thread

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

const void *instruction_of(const _PyInterpreterFrame *frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return frame->instr_ptr;
#else
  return frame->prev_instr;
#endif
}

Point point_of(_PyInterpreterFrame *frame) {
  PyCodeObject *code = frame ? code_of(frame) : nullptr;
  int offset = code ? (int)((char *)instruction_of(frame) - (char *)_PyCode_CODE(code)) : -1;
  return {code, offset, work->depth ? (long)work->safe_points : -1};
}

// Compares names of files, those of generated code without its numbers.
bool is_same_file(PyObject *a, PyObject *b) {
  const char *x = PyUnicode_AsUTF8(a), *y = PyUnicode_AsUTF8(b);
  if (!x || !y) PyErr_Clear();
  if (!x || !y || *x != '<') return x && y && strcmp(x, y) == 0;
  auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (;; x++, y++) {
    while (is_digit(*x)) x++;
    while (is_digit(*y)) y++;
    if (*x != *y) return false;
    if (!*x) return true;
  }
}

bool is_target(const Point &point) {
  Target &target = state.target;
  if (!target.file || !point.code || point.offset != target.offset ||
      point.code->co_firstlineno != target.line ||
      PyUnicode_Compare(point.code->co_qualname, target.name) != 0 ||
      !is_same_file(point.code->co_filename, target.file))
    return false;
  return target.remaining-- == 0;
}

int interrupt() {
  state.armed = false;
  PyObject *interruption = state.interruption;
  state.interruption = nullptr;
  if (PyExceptionClass_Check(interruption)) {  // raised next, at this point
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), interruption);
    Py_DECREF(interruption);
    return 0;
  }
  PyObject *result = PyObject_CallNoArgs(interruption);
  Py_DECREF(interruption);
  Py_XDECREF(result);
  return result ? 0 : -1;
}

int at_point(void *) {
  state.queued = false;
  if (!state.armed) return 0;
  _PyInterpreterFrame *frame = *current_frame_of(PyThreadState_Get());
  const void *instruction = frame ? instruction_of(frame) : nullptr;
  bool is_new = frame != state.frame || instruction != state.instruction;
  if (is_new) {
    state.frame = frame;
    state.instruction = instruction;
    Point point = point_of(frame);
    if (state.records) {
      Py_XINCREF(point.code);
      state.passed.push_back(point);
    }
    if (is_target(point)) return interrupt();
  }
  if (!enters_traced_function(frame)) enqueue();
  return 0;
}

// Sets the state of deferred interruptions that points refer to.
PyObject *use_interrupts(PyObject *, PyObject *address) {
  Interrupts *interrupts = (Interrupts *)PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  work = interrupts->own_work();
  Py_RETURN_NONE;
}

void begin() {
  state.armed = true;
  state.frame = nullptr;
  enqueue();
}

PyObject *record(PyObject *, PyObject *) {
  state.records = true;
  begin();
  Py_RETURN_NONE;
}

PyObject *arm(PyObject *, PyObject *args) {
  PyObject *file, *name, *interruption;
  Target target;
  if (!PyArg_ParseTuple(args, "(UUiil)O", &file, &name, &target.line, &target.offset, &target.remaining,
                        &interruption))
    return nullptr;
  target.file = Py_NewRef(file);
  target.name = Py_NewRef(name);
  state.target = target;
  Py_XSETREF(state.interruption, Py_NewRef(interruption));
  begin();
  Py_RETURN_NONE;
}

PyObject *resume(PyObject *, PyObject *) {
  if (state.armed) enqueue();
  Py_RETURN_NONE;
}

PyObject *has_fired(PyObject *, PyObject *) {
  return PyBool_FromLong(state.target.file && !state.interruption);
}

PyObject *describe(const Point &point) {
  return Py_BuildValue("(OOiil)", point.code->co_filename, point.code->co_qualname,
                       point.code->co_firstlineno, point.offset, point.safe_point);
}

PyObject *disarm(PyObject *, PyObject *) {
  state.armed = state.records = false;
  Py_CLEAR(state.interruption);
  Py_CLEAR(state.target.file);
  Py_CLEAR(state.target.name);
  std::vector<Point> points;
  points.swap(state.passed);
  PyObject *out = PyList_New(0);
  for (const Point &point : points) {
    if (!point.code) continue;
    PyObject *item = out ? describe(point) : nullptr;
    if (!item || PyList_Append(out, item) < 0) Py_CLEAR(out);
    Py_XDECREF(item);
    Py_DECREF(point.code);
  }
  return out;
}

PyMethodDef methods[] = {
    {"use_interrupts", use_interrupts, METH_O, "Set the address of the state of deferred interruptions."},
    {"record", record, METH_NOARGS, "Keep the points that the main thread passes from now on."},
    {"arm", arm, METH_VARARGS,
     "((file, function, line, offset, k), interruption): send an exception or call a function when the "
     "main thread passes this instruction the next time but k."},
    {"resume", resume, METH_NOARGS, "Continue after the entry of a traced function."},
    {"has_fired", has_fired, METH_NOARGS, "True if the armed point was passed."},
    {"disarm", disarm, METH_NOARGS,
     "End; return the points kept: file, function, its line, offset, and the number of the next safe "
     "point or -1."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_injector", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_injector(void) { return PyModule_Create(&module); }

// The trace hook of the monitor run.
//
// CPython calls `trace` for every event of the monitored thread. It keeps the cheap decisions here
// (is this instruction of interest? are the operands plain scalars?) and calls up into Python only
// for instructions that can change the RefGraph. `PyEval_SetTrace` is used rather than a Python
// trace function because the latter copies all locals into a dictionary at every event.
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#include <frameobject.h>
#undef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#include <opcode.h>

#include "stack_depth.h"

#include <unordered_map>
#include <vector>

namespace {

PyObject *null_marker;  // stands for an empty stack slot or an unbound local

_PyInterpreterFrame *internal(PyFrameObject *frame) { return frame->f_frame; }

PyObject *function_of(_PyInterpreterFrame *f) {
#if PY_VERSION_HEX >= 0x030C0000
  return f->f_funcobj;
#else
  return (PyObject *)f->f_func;
#endif
}

PyObject *peek(_PyInterpreterFrame *f, int depth) {
  int count = operand_depth(f);
  return depth <= count ? stack_base(f)[count - depth] : nullptr;
}

PyObject *slots(PyObject **from, int count) {
  PyObject *out = PyTuple_New(count < 0 ? 0 : count);
  if (!out) return nullptr;
  for (int i = 0; i < count; i++) {
    PyObject *v = from[i] ? from[i] : null_marker;
    Py_INCREF(v);
    PyTuple_SET_ITEM(out, i, v);
  }
  return out;
}

struct Instruction {
  unsigned char opcode = 0;
  bool first = false;  // false for the tail of an EXTENDED_ARG sequence: already announced
  int oparg = 0;
};

// What an instruction does to its operands decides which operand types make it uninteresting.
enum Filter : unsigned char { IGNORE = 0, ALWAYS = 1, TEST = 2, PAIR = 3, ROOT_ONLY = 4, ITERATORS = 5, NUMBERS = 6, OBJECTS = 7 };

bool plain(PyObject *v) {
  if (!v) return true;
  PyTypeObject *t = Py_TYPE(v);
  return v == Py_None || t == &PyBool_Type || t == &PyLong_Type || t == &PyFloat_Type ||
         t == &PyUnicode_Type || t == &PyBytes_Type || t == &PyComplex_Type || v == Py_Ellipsis;
}

// Whether two plain operands may be equal, and yet be one object as well as two.
bool look_alike(PyObject *a, PyObject *b) {
  if (!a || !b || Py_TYPE(a) != Py_TYPE(b)) return false;
  return a != Py_None && a != Py_Ellipsis && !PyBool_Check(a);
}

// Of a class that was made while Python ran, so that its methods may be Python code.
bool is_instance(PyObject *v) { return v && (Py_TYPE(v)->tp_flags & Py_TPFLAGS_HEAPTYPE); }

struct Pending {
  PyFrameObject *frame;
  PyObject *token;
};

// The instruction that a followed frame has announced last.
struct Step {
  PyFrameObject *frame;  // compared, never followed
  int offset;
  PyObject *stack;  // its operands
};

constexpr int RETURN = -1;  // stands for the offset of whichever instruction returns from a frame

// Up to a place in `frame` nothing is announced. Should `tests` be set, tests of values that are not
// plain are: the run is one on fake tensors, which do not know which way to go.
struct Skip {
  PyFrameObject *frame = nullptr;  // compared, never followed
  int until = 0;
  bool tests = false;
};

constexpr long SIDE_LIMIT = 4'000'000;  // instructions: a side that is never taken may never end

// A run of a part of the program beside the program itself, up to a place in its first frame.
struct Side {
  PyObject *code = nullptr;
  PyFrameObject *frame = nullptr;  // compared, never followed
  int until = 0, again = 0;
  long instructions = 0;
  bool abandoned = false;
  PyObject *reached = nullptr;
};

PyObject *abandoned_exception;  // unwinds a run that is not wanted any more

// Not for the monitor but for the program: Ctrl-C, a request to exit.
struct Interruption {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  bool raise() {
    if (!type) return false;
    PyErr_Restore(type, value, traceback);
    *this = Interruption();
    return true;
  }
};

struct Monitor {
  PyObject_HEAD
  PyObject *on_frame, *on_instruction, *on_result, *on_exception, *on_return, *on_hidden, *on_join,
      *on_interruption;
  const unsigned long long *dispatched;  // how many operators torch has dispatched on this thread
  unsigned long long accounted;          // how many of them the monitor was told of
  PyFrameObject *root;
  std::vector<Pending> *pending;
  std::vector<Step> *steps;
  std::unordered_map<PyCodeObject *, std::vector<Instruction>> *codes;
  unsigned char filter[256];
  bool running;
  bool numbers;    // plain numbers count too: some are lifted
  bool iterators;  // some iterators come from outside
  long instructions, announced;
  Skip skip;
  Side side;
  Interruption interruption;
};

const std::vector<Instruction> &decode(Monitor *m, PyCodeObject *code) {
  auto found = m->codes->find(code);
  if (found != m->codes->end()) return found->second;
  std::vector<Instruction> &out = (*m->codes)[code];
  Py_INCREF(code);
  PyObject *bytes = PyCode_GetCode(code);  // without specialisation and instrumentation
  if (!bytes) {
    PyErr_Clear();
    return out;
  }
  const unsigned char *b = (const unsigned char *)PyBytes_AS_STRING(bytes);
  int n = (int)PyBytes_GET_SIZE(bytes) / 2;
  out.resize(n);
  for (int i = 0; i < n; i++) {
    int start = i, arg = b[2 * i + 1];
    while (b[2 * i] == EXTENDED_ARG && i + 1 < n) {
      i++;
      arg = (arg << 8) | b[2 * i + 1];
    }
    out[start].opcode = b[2 * i];
    out[start].oparg = arg;
    out[start].first = true;
  }
  Py_DECREF(bytes);
  return out;
}

// Whether an exception is how an iterator says to a loop that it has nothing more.
bool ends_loop(Monitor *m, PyFrameObject *frame, PyObject *arg) {
  int at = PyFrame_GetLasti(frame) / 2;
  const std::vector<Instruction> &code = decode(m, internal(frame)->f_code);
  if (at < 0 || at >= (int)code.size()) return false;
  bool loop = code[at].opcode == FOR_ITER || (at && code[at - 1].opcode == FOR_ITER);
  return loop && arg && PyTuple_Check(arg) && PyTuple_GET_SIZE(arg) &&
         PyErr_GivenExceptionMatches(PyTuple_GET_ITEM(arg, 0), PyExc_StopIteration);
}

// The callbacks promise not to raise; should one do so, nothing of it may reach the program but an
// interruption, which was meant for it. It may come before a callback's first line: what that was
// to tell is lost, and the recording ends. It is raised when the event is over, or the side.
void forget_error(Monitor *m, PyFrameObject *frame) {
  if (PyErr_ExceptionMatches(PyExc_Exception)) return PyErr_Clear();
  Interruption found;
  PyErr_Fetch(&found.type, &found.value, &found.traceback);
  PyObject *told =
      PyObject_CallFunctionObjArgs(m->on_interruption, (PyObject *)frame, found.type, nullptr);
  if (!told) PyErr_Clear();
  Py_XDECREF(told);
  if (m->side.code)
    m->side.abandoned = true;
  else
    m->running = false;
  if (m->interruption.raise()) PyErr_Clear();
  m->interruption = found;
}

void swallow(Monitor *m, PyFrameObject *frame, PyObject *result) {
  if (!result) forget_error(m, frame);
  Py_XDECREF(result);
}

// Lets go of what the monitor may be the last to hold: what runs when such an object dies, a
// destructor, a weak reference's callback or the rest of a generator, is part of the program.
void release(PyObject *value) {
  if (!value) return;
  PyThreadState *thread = PyThreadState_Get();
  PyThreadState_LeaveTracing(thread);
  Py_DECREF(value);
  PyThreadState_EnterTracing(thread);
}

// The operands of a frame's last announced instruction, which are none of the monitor's any more.
PyObject *take_step(Monitor *m, PyFrameObject *frame) {
  for (size_t i = m->steps->size(); i-- > 0;) {
    if ((*m->steps)[i].frame != frame) continue;
    PyObject *stack = (*m->steps)[i].stack;
    m->steps->erase(m->steps->begin() + i);
    return stack;
  }
  return nullptr;
}

// Outside of the trace hook, and where the program is watched no more.
void drop_all(Monitor *m) {
  std::vector<Pending> pending;
  pending.swap(*m->pending);
  for (Pending p : pending) Py_DECREF(p.token);
  std::vector<Step> steps;
  steps.swap(*m->steps);
  for (Step s : steps) Py_DECREF(s.stack);
}

bool at_place(const Instruction &instruction, int offset, int place) {
  if (place != RETURN) return offset == place;
#ifdef RETURN_CONST
  if (instruction.opcode == RETURN_CONST) return true;
#endif
  return instruction.opcode == RETURN_VALUE;
}

// Every further instruction of a run that is abandoned raises, handlers and finally clauses included.
int unwind() {
  PyErr_SetNone(abandoned_exception);
  return -1;
}

int on_event(PyObject *self, PyFrameObject *frame, int what, PyObject *arg) {
  Monitor *m = (Monitor *)self;
  // The mark stays on no frame that outlives the run: Python 3.12.1 calls the trace function of a
  // marked frame's thread, there or not, whenever another thread has one.
  const bool followed = frame->f_trace_opcodes;
  if (!m->running || what == PyTrace_RETURN) frame->f_trace_opcodes = 0;
  if (!m->running) return 0;
  switch (what) {
    case PyTrace_CALL: {
      // In a run that is abandoned, what is entered now is called by destructors.
      if ((m->skip.frame && !m->skip.tests) || m->side.abandoned) {
        frame->f_trace_opcodes = 0;
        frame->f_trace_lines = 0;
        return 0;
      }
      if (m->side.code && !m->side.frame && (PyObject *)internal(frame)->f_code == m->side.code)
        m->side.frame = frame;
      PyObject *verdict = PyObject_CallFunctionObjArgs(m->on_frame, (PyObject *)frame, nullptr);
      bool follow = verdict && PyObject_IsTrue(verdict) == 1;
      swallow(m, frame, verdict);
      frame->f_trace_opcodes = follow;
      // No line is of interest. A generator that goes on later is known by not asking for lines.
      frame->f_trace_lines = !follow && (internal(frame)->f_code->co_flags & CO_GENERATOR);
      return m->side.abandoned ? unwind() : 0;
    }
    case PyTrace_OPCODE: {
      if (m->side.code && ++m->side.instructions > SIDE_LIMIT) m->side.abandoned = true;
      if (m->side.abandoned) return unwind();
      _PyInterpreterFrame *f = internal(frame);
      int at = PyFrame_GetLasti(frame) / 2;
      const std::vector<Instruction> &code = decode(m, f->f_code);
      if (at < 0 || at >= (int)code.size()) return 0;
      const Instruction &ins = code[at];
      // Python 3.12 tells of both: of the EXTENDED_ARG, and then of the instruction that it belongs
      // to, which has been announced and has not run.
      if (!ins.first) return 0;
      if (m->skip.frame) {
        if (frame == m->skip.frame && at_place(ins, 2 * at, m->skip.until)) {
          m->skip = Skip();
          if (m->dispatched) m->accounted = *m->dispatched;
          swallow(m, frame, PyObject_CallFunctionObjArgs(m->on_join, (PyObject *)frame, nullptr));
          if (m->side.abandoned) return unwind();
          if (!m->running) return 0;
        } else if (!m->skip.tests || m->filter[ins.opcode] != TEST || plain(peek(f, 1))) {
          return 0;
        }
      }
      if (!m->skip.frame && !m->pending->empty() && m->pending->back().frame == frame) {
        Pending p = m->pending->back();
        m->pending->pop_back();
        PyObject *stack = slots(stack_base(f), operand_depth(f));
        swallow(m, frame, PyObject_CallFunctionObjArgs(m->on_result, p.token, (PyObject *)frame, stack,
                                                       nullptr));
        Py_XDECREF(stack);
        release(p.token);
        if (m->side.abandoned) return unwind();
        if (!m->running) return 0;
      }
      if (!m->skip.frame && m->dispatched && *m->dispatched != m->accounted) {
        m->accounted = *m->dispatched;
        swallow(m, frame, PyObject_CallFunctionObjArgs(m->on_hidden, (PyObject *)frame, nullptr));
        if (m->side.abandoned) return unwind();
        if (!m->running) return 0;
      }
      m->instructions++;
      if (frame == m->side.frame && !m->skip.frame) {
        if (2 * at == m->side.again || at_place(ins, 2 * at, m->side.until)) {
          PyObject *locals = slots(f->localsplus, f->f_code->co_nlocalsplus);
          PyObject *stack = slots(stack_base(f), operand_depth(f));
          m->side.reached = Py_BuildValue("(iNN)", 2 * at, locals, stack);
          m->side.abandoned = true;
          return unwind();
        }
      }
      switch (m->filter[ins.opcode]) {
        case IGNORE:
          return 0;
        case TEST:
          if (!m->numbers && plain(peek(f, 1))) return 0;
          break;
        case PAIR:
          if (!m->numbers && plain(peek(f, 1)) && plain(peek(f, 2))) return 0;
          break;
        case OBJECTS:
          if (!m->numbers && plain(peek(f, 1)) && plain(peek(f, 2)) && !look_alike(peek(f, 1), peek(f, 2))) return 0;
          break;
        case ITERATORS:
          if (!m->iterators && !is_instance(peek(f, 1))) return 0;
          break;
        case ROOT_ONLY:
          if (frame != m->root) return 0;
          break;
        case NUMBERS:
          if (!m->numbers) return 0;
          break;
        default:
          break;
      }
      m->announced++;
      release(take_step(m, frame));
      if (m->side.abandoned) return unwind();
      if (!m->running) return 0;
      PyObject *stack = slots(stack_base(f), operand_depth(f));
      PyObject *op = PyLong_FromLong(ins.opcode), *oparg = PyLong_FromLong(ins.oparg);
      PyObject *offset = PyLong_FromLong(at * 2);
      if (stack) m->steps->push_back({frame, at * 2, Py_NewRef(stack)});
      PyObject *token = PyObject_CallFunctionObjArgs(m->on_instruction, (PyObject *)frame, op, oparg,
                                                     offset, stack, nullptr);
      Py_XDECREF(stack);
      Py_XDECREF(op);
      Py_XDECREF(oparg);
      Py_XDECREF(offset);
      if (!token) {
        forget_error(m, frame);
      } else if (token == Py_None || !m->running) {
        Py_DECREF(token);
      } else {
        m->pending->push_back({frame, token});
      }
      return m->side.abandoned ? unwind() : 0;
    }
    case PyTrace_EXCEPTION:
      if (ends_loop(m, frame, arg)) return 0;
      // The instruction that was to have a result has raised instead.
      if (!m->pending->empty() && m->pending->back().frame == frame) {
        Pending p = m->pending->back();
        m->pending->pop_back();
        swallow(m, frame, PyObject_CallFunctionObjArgs(m->on_exception, p.token, (PyObject *)frame, arg,
                                                       nullptr));
        release(p.token);
      }
      return 0;
    case PyTrace_RETURN:
      if (frame == m->skip.frame) {  // it was left by an exception
        m->skip = Skip();
        if (m->dispatched) m->accounted = *m->dispatched;
        swallow(m, frame, PyObject_CallFunctionObjArgs(m->on_join, Py_None, nullptr));
      }
      while (!m->pending->empty() && m->pending->back().frame == frame) {
        Pending p = m->pending->back();
        m->pending->pop_back();
        release(p.token);
      }
      if (followed && m->on_return != Py_None)
        swallow(m, frame, PyObject_CallFunctionObjArgs(m->on_return, (PyObject *)frame,
                                                       arg ? arg : null_marker, nullptr));
      release(take_step(m, frame));
      return 0;
    default:
      return 0;
  }
}

int trace(PyObject *self, PyFrameObject *frame, int what, PyObject *arg) {
  int outcome = on_event(self, frame, what, arg);
  Monitor *m = (Monitor *)self;
  return !m->side.code && m->interruption.raise() ? -1 : outcome;
}

PyObject *monitor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static const char *names[] = {"on_frame", "on_instruction", "on_result", "on_exception", "on_return", "on_hidden", "on_join", "on_interruption", "filter", nullptr};
  PyObject *frame, *instruction, *result, *exception, *ret, *hidden, *join, *interruption;
  Py_buffer filter;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOy*", (char **)names, &frame, &instruction,
                                   &result, &exception, &ret, &hidden, &join, &interruption,
                                   &filter))
    return nullptr;
  if (filter.len != 256) {
    PyBuffer_Release(&filter);
    PyErr_SetString(PyExc_ValueError, "filter must have one byte for each of the 256 opcodes");
    return nullptr;
  }
  Monitor *m = (Monitor *)type->tp_alloc(type, 0);
  if (m) {
    m->on_frame = Py_NewRef(frame);
    m->on_instruction = Py_NewRef(instruction);
    m->on_result = Py_NewRef(result);
    m->on_exception = Py_NewRef(exception);
    m->on_return = Py_NewRef(ret);
    m->on_hidden = Py_NewRef(hidden);
    m->on_join = Py_NewRef(join);
    m->on_interruption = Py_NewRef(interruption);
    m->skip = Skip();
    m->side = Side();
    m->interruption = Interruption();
    m->dispatched = nullptr;
    m->accounted = 0;
    m->root = nullptr;
    m->pending = new std::vector<Pending>();
    m->steps = new std::vector<Step>();
    m->codes = new std::unordered_map<PyCodeObject *, std::vector<Instruction>>();
    memcpy(m->filter, filter.buf, 256);
    m->running = false;
  }
  PyBuffer_Release(&filter);
  return (PyObject *)m;
}

void forget(Monitor *m) {
  drop_all(m);
  std::unordered_map<PyCodeObject *, std::vector<Instruction>> codes;
  codes.swap(*m->codes);
  for (auto &c : codes) Py_DECREF(c.first);
  Py_CLEAR(m->on_frame);
  Py_CLEAR(m->on_instruction);
  Py_CLEAR(m->on_result);
  Py_CLEAR(m->on_exception);
  Py_CLEAR(m->on_return);
  Py_CLEAR(m->on_hidden);
  Py_CLEAR(m->on_join);
  Py_CLEAR(m->on_interruption);
}

void monitor_dealloc(PyObject *self) {
  Monitor *m = (Monitor *)self;
  PyObject_GC_UnTrack(self);
  forget(m);
  delete m->pending;
  delete m->steps;
  delete m->codes;
  Py_TYPE(self)->tp_free(self);
}

int monitor_traverse(PyObject *self, visitproc visit, void *arg) {
  Monitor *m = (Monitor *)self;
  Py_VISIT(m->on_frame);
  Py_VISIT(m->on_instruction);
  Py_VISIT(m->on_result);
  Py_VISIT(m->on_exception);
  Py_VISIT(m->on_return);
  Py_VISIT(m->on_hidden);
  Py_VISIT(m->on_join);
  Py_VISIT(m->on_interruption);
  for (Pending p : *m->pending) Py_VISIT(p.token);
  for (Step s : *m->steps) Py_VISIT(s.stack);
  return 0;
}

int monitor_clear(PyObject *self) {
  forget((Monitor *)self);
  return 0;
}

PyObject *monitor_start(PyObject *self, PyObject *counter) {
  Monitor *m = (Monitor *)self;
  m->dispatched = (const unsigned long long *)PyLong_AsVoidPtr(counter);
  if (!m->dispatched && PyErr_Occurred()) return nullptr;
  m->accounted = *m->dispatched;
  m->running = true;
  PyEval_SetTrace(trace, self);
  Py_RETURN_NONE;
}

// Ends the announcements at once; whoever started the monitor restores the earlier trace function.
PyObject *monitor_stop(PyObject *self, PyObject *) {
  ((Monitor *)self)->running = false;
  drop_all((Monitor *)self);
  Py_RETURN_NONE;
}

// The monitor knows of every operator that was dispatched up to now.
PyObject *monitor_account(PyObject *self, PyObject *) {
  Monitor *m = (Monitor *)self;
  if (m->dispatched) m->accounted = *m->dispatched;
  Py_RETURN_NONE;
}

// Nobody waits any more for what the instructions under way will give.
PyObject *monitor_drop_pending(PyObject *self, PyObject *) {
  std::vector<Pending> pending;
  pending.swap(*((Monitor *)self)->pending);
  for (Pending p : pending) Py_DECREF(p.token);
  Py_RETURN_NONE;
}

// The offset and the operands of the instruction that a frame is in; None for one not followed.
PyObject *monitor_step(PyObject *self, PyObject *frame) {
  for (const Step &s : *((Monitor *)self)->steps)
    if ((PyObject *)s.frame == frame) return Py_BuildValue("(iO)", s.offset, s.stack);
  Py_RETURN_NONE;
}

PyObject *monitor_set_root(PyObject *self, PyObject *frame) {
  ((Monitor *)self)->root = (PyFrameObject *)frame;  // compared, never followed
  Py_RETURN_NONE;
}

// Whether native code that an instruction of this frame has called is still running.
PyObject *monitor_waits(PyObject *self, PyObject *frame) {
  Monitor *m = (Monitor *)self;
  return PyBool_FromLong(!m->pending->empty() && (PyObject *)m->pending->back().frame == frame);
}

PyObject *monitor_watch_numbers(PyObject *self, PyObject *) {
  ((Monitor *)self)->numbers = true;
  Py_RETURN_NONE;
}

PyObject *monitor_watch_iterators(PyObject *self, PyObject *) {
  ((Monitor *)self)->iterators = true;
  Py_RETURN_NONE;
}

PyObject *monitor_set_filter(PyObject *self, PyObject *filter) {
  if (!PyBytes_Check(filter) || PyBytes_GET_SIZE(filter) != 256) {
    PyErr_SetString(PyExc_ValueError, "filter must have one byte for each of the 256 opcodes");
    return nullptr;
  }
  memcpy(((Monitor *)self)->filter, PyBytes_AS_STRING(filter), 256);
  Py_RETURN_NONE;
}

PyObject *monitor_skip(PyObject *self, PyObject *args) {
  PyObject *frame;
  int until, tests;
  if (!PyArg_ParseTuple(args, "O!ip", &PyFrame_Type, &frame, &until, &tests)) return nullptr;
  Skip &skip = ((Monitor *)self)->skip;
  skip.frame = (PyFrameObject *)frame;
  skip.until = until;
  skip.tests = tests;
  Py_RETURN_NONE;
}

// The run beside the program that is going on has no use any more: it unwinds.
PyObject *monitor_abandon(PyObject *self, PyObject *) {
  ((Monitor *)self)->side.abandoned = true;
  Py_RETURN_NONE;
}

// Calls a function from inside the trace hook, and traces it.
PyObject *monitor_explore(PyObject *self, PyObject *args) {
  Monitor *m = (Monitor *)self;
  PyObject *function;
  int until, again;
  if (!PyArg_ParseTuple(args, "O!ii", &PyFunction_Type, &function, &until, &again)) return nullptr;
  Side outer_side = m->side;
  Skip outer_skip = m->skip;
  m->skip = Skip();
  m->side = Side();
  m->side.code = PyFunction_GET_CODE(function);
  m->side.until = until;
  m->side.again = again;
  if (m->dispatched) m->accounted = *m->dispatched;
  // What `sys.call_tracing` does, which leaves tracing off on Python 3.11.
  PyThreadState *thread = PyThreadState_Get();
  // A handler that is unwound by force does not come to the instruction that forgets its exception.
  PyObject *handled = PyErr_GetHandledException();
  PyThreadState_LeaveTracing(thread);
  PyObject *value = PyObject_CallNoArgs(function);
  PyThreadState_EnterTracing(thread);
  PyErr_SetHandledException(handled);
  Py_XDECREF(handled);
  Side ended = m->side;
  m->side = outer_side;
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

PyObject *monitor_counts(PyObject *self, PyObject *) {
  Monitor *m = (Monitor *)self;
  return Py_BuildValue("ll", m->instructions, m->announced);
}

PyMethodDef monitor_methods[] = {
    {"start", monitor_start, METH_O,
     "Become the trace function of this thread; the argument is the address of its dispatch count."},
    {"account", monitor_account, METH_NOARGS, "All operators dispatched so far are known."},
    {"stop", monitor_stop, METH_NOARGS, "Announce nothing more."},
    {"set_root", monitor_set_root, METH_O, "The frame whose reads of its own arguments are announced."},
    {"drop_pending", monitor_drop_pending, METH_NOARGS, "Forget what instructions under way will give."},
    {"step", monitor_step, METH_O,
     "The offset and the operands of the instruction that a frame is in, or None."},
    {"waits", monitor_waits, METH_O, "Whether a frame waits for the result of native code."},
    {"watch_numbers", monitor_watch_numbers, METH_NOARGS, "Announce instructions on plain numbers too."},
    {"watch_iterators", monitor_watch_iterators, METH_NOARGS, "Announce the steps of loops."},
    {"set_filter", monitor_set_filter, METH_O, "Which instructions are announced from now on."},
    {"skip", monitor_skip, METH_VARARGS,
     "(frame, until, tests): announce nothing until `frame` is about to run the instruction at that "
     "offset (-1: returns); then call `on_join(frame)`, or `on_join(None)` if it raised."},
    {"explore", monitor_explore, METH_VARARGS,
     "(function, until, again): run a function in the trace hook, traced, until its frame is about "
     "to run the instruction at one of these offsets (-1: returns). Returns the offset, the locals "
     "and the operands there; None when the run was abandoned. Raises what the function raises."},
    {"abandon", monitor_abandon, METH_NOARGS, "Unwind the run that `explore` has begun."},
    {"counts", monitor_counts, METH_NOARGS, "(instructions seen, instructions announced)."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject monitor_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool is_frame(PyObject *frame) {
  if (PyFrame_Check(frame)) return true;
  PyErr_SetString(PyExc_TypeError, "expected a frame");
  return false;
}

PyObject *frame_stack(PyObject *, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  _PyInterpreterFrame *f = internal((PyFrameObject *)frame);
  return slots(stack_base(f), operand_depth(f));
}

// The lowest operands of a frame that is known to have so many, such as a generator's.
PyObject *frame_operands(PyObject *, PyObject *args) {
  PyObject *frame;
  int count;
  if (!PyArg_ParseTuple(args, "O!i", &PyFrame_Type, &frame, &count)) return nullptr;
  return slots(stack_base(internal((PyFrameObject *)frame)), count);
}

PyObject *frame_locals(PyObject *, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  _PyInterpreterFrame *f = internal((PyFrameObject *)frame);
  return slots(f->localsplus, f->f_code->co_nlocalsplus);
}

PyObject *frame_function(PyObject *, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  PyObject *function = function_of(internal((PyFrameObject *)frame));
  return Py_NewRef(function ? function : Py_None);
}

// Replaces one operand of a frame that waits in the trace hook; depth 1 is the top of the stack.
PyObject *frame_set_operand(PyObject *, PyObject *args) {
  PyObject *frame, *value;
  int depth;
  if (!PyArg_ParseTuple(args, "O!iO", &PyFrame_Type, &frame, &depth, &value)) return nullptr;
  _PyInterpreterFrame *f = internal((PyFrameObject *)frame);
  if (depth < 1 || depth > operand_depth(f)) {
    PyErr_SetString(PyExc_IndexError, "no such operand");
    return nullptr;
  }
  PyObject **slot = stack_base(f) + operand_depth(f) - depth;
  PyObject *old = *slot;
  *slot = Py_NewRef(value);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

// Replaces a local variable, told by its slot, of a frame that waits in the trace hook or in a call.
PyObject *frame_set_local(PyObject *, PyObject *args) {
  PyObject *frame, *value;
  int slot;
  if (!PyArg_ParseTuple(args, "O!iO", &PyFrame_Type, &frame, &slot, &value)) return nullptr;
  _PyInterpreterFrame *f = internal((PyFrameObject *)frame);
  if (slot < 0 || slot >= f->f_code->co_nlocals) {
    PyErr_SetString(PyExc_IndexError, "no such local");
    return nullptr;
  }
  PyObject *old = f->localsplus[slot];
  f->localsplus[slot] = Py_NewRef(value);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

// A number or text that shares its identity with no other, not even a small one.
PyObject *fresh_plain(PyObject *, PyObject *value) {
  if (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value)) {
    PyObject *copy = PyUnicode_New(PyUnicode_GET_LENGTH(value), PyUnicode_MAX_CHAR_VALUE(value));
    if (copy && PyUnicode_CopyCharacters(copy, 0, value, 0, PyUnicode_GET_LENGTH(value)) < 0)
      Py_CLEAR(copy);
    return copy;
  }
  if (PyFloat_CheckExact(value)) return PyFloat_FromDouble(PyFloat_AS_DOUBLE(value));
  if (!PyLong_CheckExact(value)) {
    PyErr_SetString(PyExc_TypeError, "expected an int, a float or a text that is not empty");
    return nullptr;
  }
  PyLongObject *from = (PyLongObject *)value;
#if PY_VERSION_HEX >= 0x030C0000
  Py_ssize_t digits = (Py_ssize_t)(from->long_value.lv_tag >> 3);
  PyLongObject *to = _PyLong_New(digits);
  if (!to) return nullptr;
  for (Py_ssize_t i = 0; i < (digits ? digits : 1); i++)
    to->long_value.ob_digit[i] = digits ? from->long_value.ob_digit[i] : 0;
  to->long_value.lv_tag = from->long_value.lv_tag;
#else
  Py_ssize_t size = Py_SIZE(from), digits = size < 0 ? -size : size;
  PyLongObject *to = _PyLong_New(digits);
  if (!to) return nullptr;
  for (Py_ssize_t i = 0; i < (digits ? digits : 1); i++) to->ob_digit[i] = digits ? from->ob_digit[i] : 0;
  Py_SET_SIZE(to, size);
#endif
  return (PyObject *)to;
}

PyObject *lookup_in_type(PyObject *, PyObject *args) {
  PyObject *type, *name;
  if (!PyArg_ParseTuple(args, "O!U", &PyType_Type, &type, &name)) return nullptr;
  PyObject *found = _PyType_Lookup((PyTypeObject *)type, name);
  if (!found && PyErr_Occurred()) return nullptr;
  return Py_NewRef(found ? found : null_marker);
}

// Past what a class may answer for `__dict__`. A class keeps its attributes in another way.
PyObject *instance_dict(PyObject *, PyObject *value) {
  if (PyType_Check(value)) Py_RETURN_NONE;
  PyObject *found = PyObject_GenericGetDict(value, nullptr);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  Py_RETURN_NONE;
}

// By the class that a value is of: `isinstance` asks the value for its `__class__` as well.
PyObject *is_of(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "expected a value and a class, or several");
    return nullptr;
  }
  PyObject *type = (PyObject *)Py_TYPE(args[0]);
  int found = type == args[1] ? 1 : PyObject_IsSubclass(type, args[1]);
  return found < 0 ? nullptr : PyBool_FromLong(found);
}

struct Count {
  PyObject *wanted;
  Py_ssize_t found;
};

int count_visit(PyObject *value, void *count) {
  Count *c = (Count *)count;
  if (value == c->wanted) c->found++;
  return 0;
}

Py_ssize_t occurrences(PyObject **from, Py_ssize_t count, PyObject *value) {
  Py_ssize_t found = 0;
  for (Py_ssize_t i = 0; i < count; i++) found += from[i] == value;
  return found;
}

// Puts `instead` where `holder` refers to `old` in memory of its own: a tuple, a slice, a suspended
// generator. What the type tells the garbage collector says how many references there are; when
// there are not as many words that look like one, nothing is touched.
PyObject *replace_references(PyObject *, PyObject *args) {
  PyObject *holder, *old, *instead;
  if (!PyArg_ParseTuple(args, "OOO", &holder, &old, &instead)) return nullptr;
  PyTypeObject *type = Py_TYPE(holder);
  if (!PyObject_IS_GC(holder) || !type->tp_traverse || PyType_Check(holder)) Py_RETURN_FALSE;
  PyObject **from = (PyObject **)((char *)holder + sizeof(PyObject));
  Py_ssize_t bytes = type->tp_basicsize - sizeof(PyObject);
  if (type->tp_itemsize) bytes += type->tp_itemsize * (Py_SIZE(holder) < 0 ? -Py_SIZE(holder) : Py_SIZE(holder));
  Py_ssize_t count = bytes / (Py_ssize_t)sizeof(PyObject *);
  if (PyGen_CheckExact(holder)) {
    _PyInterpreterFrame *f = (_PyInterpreterFrame *)((PyGenObject *)holder)->gi_iframe;
    if (((PyGenObject *)holder)->gi_frame_state >= FRAME_EXECUTING) Py_RETURN_FALSE;
    from = f->localsplus;
    count = f->stacktop;
  }
  Count told{old, 0};
  type->tp_traverse(holder, count_visit, &told);
  if (!told.found || occurrences(from, count, old) != told.found) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (from[i] != old) continue;
    from[i] = Py_NewRef(instead);
    Py_DECREF(old);
  }
  Py_RETURN_TRUE;
}

PyObject *tuple_set(PyObject *, PyObject *args) {
  PyObject *tuple, *value;
  Py_ssize_t at;
  if (!PyArg_ParseTuple(args, "O!nO", &PyTuple_Type, &tuple, &at, &value)) return nullptr;
  if (at < 0 || at >= PyTuple_GET_SIZE(tuple)) return PyErr_Format(PyExc_IndexError, "no element %zd", at);
  PyObject *old = PyTuple_GET_ITEM(tuple, at);
  PyTuple_SET_ITEM(tuple, at, Py_NewRef(value));
  Py_DECREF(old);
  Py_RETURN_NONE;
}

bool lies_in(_PyInterpreterFrame *f, PyObject *folder) {
  if (_PyFrame_IsIncomplete(f)) return true;
  PyObject *file = ((PyCodeObject *)f->f_code)->co_filename;
  return PyUnicode_Tailmatch(file, folder, 0, PY_SSIZE_T_MAX, -1) == 1;
}

// The program may look at who has called it, as `warnings.warn(stacklevel=2)` and loggers do. New
// frames are called by the one that the thread is in, so the thread is said to be in the innermost
// one that is not ours while they run. The interpreter goes on with our frames by its own stack.
PyObject *call_as_caller(PyObject *, PyObject *args) {
  PyObject *folder, *function, *positional, *keywords = nullptr;
  if (!PyArg_ParseTuple(args, "UOO!|O!", &folder, &function, &PyTuple_Type, &positional,
                        &PyDict_Type, &keywords))
    return nullptr;
  _PyInterpreterFrame **current = &PyThreadState_Get()->cframe->current_frame;
  _PyInterpreterFrame *ours = *current, *caller = ours;
  while (caller && lies_in(caller, folder)) caller = caller->previous;
  if (caller) *current = caller;
  PyObject *result = PyObject_Call(function, positional, keywords);
  *current = ours;
  return result;
}

PyMethodDef module_methods[] = {
    {"call_as_caller", call_as_caller, METH_VARARGS,
     "(folder, function, args, kwargs): call it as the innermost caller whose code lies elsewhere."},
    {"is_of", (PyCFunction)(void (*)(void))is_of, METH_FASTCALL, "(value, classes): whether it is an instance, by its class alone."},
    {"frame_stack", frame_stack, METH_O, "The operand stack of a frame, bottom first."},
    {"frame_operands", frame_operands, METH_VARARGS, "(frame, count): its lowest operands."},
    {"frame_locals", frame_locals, METH_O, "Locals, cells and free variables as stored: cells unopened."},
    {"frame_function", frame_function, METH_O, "The function object that a frame runs."},
    {"frame_set_operand", frame_set_operand, METH_VARARGS, "(frame, depth, value)"},
    {"frame_set_local", frame_set_local, METH_VARARGS, "(frame, slot, value)"},
    {"replace_references", replace_references, METH_VARARGS,
     "(holder, old, instead): whether all references of the holder itself were replaced."},
    {"tuple_set", tuple_set, METH_VARARGS, "(tuple, index, value): for an equal value."},
    {"fresh_plain", fresh_plain, METH_O, "An equal int, float or str with an identity of its own."},
    {"lookup_in_type", lookup_in_type, METH_VARARGS, "(type, name): what the classes of the MRO hold, or NULL."},
    {"instance_dict", instance_dict, METH_O, "The dictionary of an instance, or None when it has none."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_monitor", nullptr, -1, module_methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_monitor(void) {
  monitor_type.tp_name = "_magpy_monitor.Monitor";
  monitor_type.tp_basicsize = sizeof(Monitor);
  monitor_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  monitor_type.tp_new = monitor_new;
  monitor_type.tp_dealloc = monitor_dealloc;
  monitor_type.tp_traverse = monitor_traverse;
  monitor_type.tp_clear = monitor_clear;
  monitor_type.tp_methods = monitor_methods;
  if (PyType_Ready(&monitor_type) < 0) return nullptr;
  PyObject *m = PyModule_Create(&module);
  if (!m) return nullptr;
  abandoned_exception =
      PyErr_NewException("_magpy_monitor.Abandoned", PyExc_BaseException, nullptr);
  if (!abandoned_exception) return nullptr;
  null_marker = PyObject_CallFunction((PyObject *)&PyBaseObject_Type, nullptr);
  if (!null_marker || PyModule_AddObjectRef(m, "NULL", null_marker) < 0 ||
      PyModule_AddObjectRef(m, "Monitor", (PyObject *)&monitor_type) < 0) {
    Py_DECREF(m);
    return nullptr;
  }
  return m;
}

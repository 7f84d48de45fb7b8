// Trace hook of the monitor, and native access to frames and objects.
//
// CPython calls `trace` for every event of the monitored thread. The cheap decisions are made here
// (is a rule interested in this instruction? are its operands plain scalars?); only instructions that
// may change the RefGraph are reported to Python callbacks. `PyEval_SetTrace` is used because a trace
// function in Python copies all locals into a dictionary at every event.
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#include <frameobject.h>
#undef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#include <opcode.h>

#include "asynchronous.h"
#include "interrupts.h"
#include "stack_depth.h"

#include <unordered_map>
#include <vector>

namespace {

PyObject *null_marker;  // an empty stack slot or an unbound local
Interrupts *interrupts;  // deferred interruptions; set at import

_PyInterpreterFrame *internal_frame(PyFrameObject *frame) { return frame->f_frame; }

PyObject *function_of(_PyInterpreterFrame *f) {
#if PY_VERSION_HEX >= 0x030C0000
  return f->f_funcobj;
#else
  return (PyObject *)f->f_func;
#endif
}

// Returns the operand at a depth, 1 for the top of the stack; null if there is none.
PyObject *peek(_PyInterpreterFrame *f, int depth) {
  int count = operand_depth(f);
  return depth <= count ? stack_base(f)[count - depth] : nullptr;
}

// Returns a tuple of stack slots or locals, with `null_marker` for empty ones.
PyObject *make_slot_tuple(PyObject **slots, int count) {
  PyObject *out = PyTuple_New(count < 0 ? 0 : count);
  if (!out) return nullptr;
  for (int i = 0; i < count; i++) {
    PyObject *v = slots[i] ? slots[i] : null_marker;
    Py_INCREF(v);
    PyTuple_SET_ITEM(out, i, v);
  }
  return out;
}

struct Instruction {
  unsigned char opcode = 0;
  bool first = false;  // false within an EXTENDED_ARG sequence: its first unit is reported
  int oparg = 0;
};

// When an instruction is reported: `when` in annotations/opcodes.yaml.
enum Filter : unsigned char {
  IGNORE = 0, ALWAYS = 1, TEST = 2, PAIR = 3, ROOT_ONLY = 4, ITERATORS = 5, NUMBERS = 6, OBJECTS = 7
};

bool is_plain(PyObject *v) {
  if (!v) return true;
  PyTypeObject *t = Py_TYPE(v);
  return v == Py_None || t == &PyBool_Type || t == &PyLong_Type || t == &PyFloat_Type ||
         t == &PyUnicode_Type || t == &PyBytes_Type || t == &PyComplex_Type || v == Py_Ellipsis;
}

// True if two plain operands may be equal objects or one object, so that their identity is not
// determined by their values.
bool has_ambiguous_identity(PyObject *a, PyObject *b) {
  if (!a || !b || Py_TYPE(a) != Py_TYPE(b)) return false;
  return a != Py_None && a != Py_Ellipsis && !PyBool_Check(a);
}

// True for an instance of a heap type, whose methods may be Python code.
bool has_heap_type(PyObject *v) { return v && (Py_TYPE(v)->tp_flags & Py_TPFLAGS_HEAPTYPE); }

// True if a class overrides one of `type`'s methods by code of the program.
bool overrides(PyTypeObject *meta, const char *method) {
  PyObject *name = PyUnicode_InternFromString(method);
  PyObject *found = name ? _PyType_Lookup(meta, name) : nullptr;
  Py_XDECREF(name);
  if (!found) PyErr_Clear();
  return found && Py_TYPE(found) != &PyWrapperDescr_Type && Py_TYPE(found) != &PyMethodDescr_Type;
}

// True for a metaclass that sees uses of its classes, and so those by the monitor: it defines
// comparison, hash or attribute access.
bool observes_its_classes(PyTypeObject *meta) {
  if (meta == &PyType_Type || !PyType_IsSubtype(meta, &PyType_Type)) return false;
  if (meta->tp_richcompare != PyType_Type.tp_richcompare &&
      (overrides(meta, "__eq__") || overrides(meta, "__ne__")))
    return true;
  if (meta->tp_hash != PyType_Type.tp_hash && overrides(meta, "__hash__")) return true;
  return meta->tp_getattro != PyType_Type.tp_getattro && overrides(meta, "__getattribute__");
}

// True if one of the values is such a class or an instance of one.
bool hold_observed_class(PyObject **values, int count) {
  for (int i = 0; i < count; i++) {
    if (!values[i]) continue;
    PyTypeObject *kind = Py_TYPE(values[i]);
    if (Py_TYPE(kind) != &PyType_Type && observes_its_classes(Py_TYPE(kind))) return true;
    if (kind != &PyType_Type && PyType_Check(values[i]) && observes_its_classes(kind)) return true;
  }
  return false;
}

// A reported instruction whose result `on_result` awaits.
struct Pending {
  PyFrameObject *frame;
  PyObject *token;  // owned; returned by `on_instruction`
};

// The last reported instruction of a followed frame.
struct Step {
  PyFrameObject *frame;  // borrowed, only compared
  int offset;
  PyObject *stack;  // owned: its operands
};

constexpr int AT_RETURN = -1;  // in place of an offset: any instruction that returns from the frame

// Nothing is reported until `frame` reaches an offset. With `tests`, tests of values that are not
// plain are: in a run on fake tensors, their results are not known.
struct Skip {
  PyFrameObject *frame = nullptr;  // borrowed, only compared
  int end_offset = 0;
  bool tests = false;
};

constexpr long MAX_ISOLATED_INSTRUCTIONS = 4'000'000;  // a branch that is never taken may not terminate

// A run of a part of the program in isolation, until its first frame reaches one of two offsets.
struct IsolatedRun {
  PyObject *code = nullptr;
  PyFrameObject *frame = nullptr;  // borrowed, only compared
  int end_offset = 0, other_end_offset = 0;
  long instructions = 0;
  bool abandoned = false;
  PyObject *reached = nullptr;  // owned: (offset, locals, operands) at the end
};

PyObject *abandoned_error;  // exception type that unwinds an abandoned run

// An exception that is for the program, not for the monitor: KeyboardInterrupt, SystemExit.
struct Interruption {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;  // owned

  // Raises the exception, if there is one.
  bool raise() {
    if (!type) return false;
    PyErr_Restore(type, value, traceback);
    *this = Interruption();
    return true;
  }
};

struct Monitor {
  PyObject_HEAD
  PyObject *on_frame, *on_instruction, *on_result, *on_exception, *on_return, *on_unreported_operators,
      *on_join, *on_interruption, *on_observed_class;  // owned: callbacks
  const unsigned long long *dispatched;  // number of operators that torch dispatched on this thread
  unsigned long long accounted;          // number of them that the monitor knows
  PyFrameObject *root;                   // borrowed, only compared
  std::vector<Pending> *pending;
  std::vector<Step> *steps;
  std::unordered_map<PyCodeObject *, std::vector<Instruction>> *codes;  // decoded; keys owned
  unsigned char filter[256];
  bool running;
  bool reports_numbers;    // plain operands are of interest: some are lifted numbers
  bool reports_iterators;  // some iterators come from outside
  long instructions, reported;
  Skip skip;
  IsolatedRun isolated_run;
  Interruption interruption;
  Interrupts *interrupts;    // null in other threads than the main one
  OwnWork *work;             // that of the monitor's thread
  unsigned long thread;
  PyObject *suspension;      // owned: has an attribute `depth`; null while no program runs
  bool is_collecting;
};

// Returns the instructions of a code object by index, without specialization and instrumentation.
const std::vector<Instruction> &decode(Monitor *m, PyCodeObject *code) {
  auto found = m->codes->find(code);
  if (found != m->codes->end()) return found->second;
  std::vector<Instruction> &out = (*m->codes)[code];
  Py_INCREF(code);
  PyObject *bytes = PyCode_GetCode(code);
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

// True if an exception is the StopIteration that ends a for loop.
bool ends_loop(Monitor *m, PyFrameObject *frame, PyObject *arg) {
  int at = PyFrame_GetLasti(frame) / 2;
  const std::vector<Instruction> &code = decode(m, internal_frame(frame)->f_code);
  if (at < 0 || at >= (int)code.size()) return false;
  bool loop = code[at].opcode == FOR_ITER || (at && code[at - 1].opcode == FOR_ITER);
  return loop && arg && PyTuple_Check(arg) && PyTuple_GET_SIZE(arg) &&
         PyErr_GivenExceptionMatches(PyTuple_GET_ITEM(arg, 0), PyExc_StopIteration);
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

// Lets code of the program run in the trace hook, traced.
struct TracedCode {
  PyThreadState *thread = PyThreadState_Get();

  TracedCode() { PyThreadState_LeaveTracing(thread); }
  ~TracedCode() { PyThreadState_EnterTracing(thread); }
};

// Releases a reference that may be the last one. Code that runs when the object dies (a destructor, a
// callback of a weak reference, the rest of a generator) is part of the program: it is traced. If an
// exception waits, the recording is over: a destructor would swallow it.
void release(Monitor *m, PyObject *value) {
  if (!value) return;
  if (m->work->holds_exception()) {
    Py_DECREF(value);
    return;
  }
  TracedCode traced;
  Py_DECREF(value);
}

// Returns the operands of a frame's last reported instruction and removes its record; null if none.
PyObject *pop_step(Monitor *m, PyFrameObject *frame) {
  for (size_t i = m->steps->size(); i-- > 0;) {
    if ((*m->steps)[i].frame != frame) continue;
    PyObject *stack = (*m->steps)[i].stack;
    m->steps->erase(m->steps->begin() + i);
    return stack;
  }
  return nullptr;
}

// Releases pending and reported instructions. Called outside the trace hook, where the program is no
// longer monitored.
void drop_references(Monitor *m) {
  std::vector<Pending> pending;
  pending.swap(*m->pending);
  for (Pending p : pending) Py_DECREF(p.token);
  std::vector<Step> steps;
  steps.swap(*m->steps);
  for (Step s : steps) Py_DECREF(s.stack);
}

bool is_at(const Instruction &instruction, int offset, int target) {
  if (target != AT_RETURN) return offset == target;
#ifdef RETURN_CONST
  if (instruction.opcode == RETURN_CONST) return true;
#endif
  return instruction.opcode == RETURN_VALUE;
}

// Every further instruction of an abandoned run raises, those of handlers and finally clauses too.
int raise_abandoned() {
  PyErr_SetNone(abandoned_error);
  return -1;
}

// True if the monitor still listens after a callback.
bool is_listening(const Monitor *m) { return m->running && !m->isolated_run.abandoned; }

// Return value of the trace function.
int trace_result(const Monitor *m) { return m->isolated_run.abandoned ? raise_abandoned() : 0; }

void report_observed_class(Monitor *m, PyFrameObject *frame) {
  consume(m, frame, PyObject_CallFunctionObjArgs(m->on_observed_class, (PyObject *)frame, nullptr));
}

int handle_call(Monitor *m, PyFrameObject *frame) {
  // In an abandoned run, new frames are those of destructors.
  if ((m->skip.frame && !m->skip.tests) || m->isolated_run.abandoned) {
    frame->f_trace_opcodes = 0;
    frame->f_trace_lines = 0;
    return 0;
  }
  if (m->isolated_run.code && !m->isolated_run.frame &&
      (PyObject *)internal_frame(frame)->f_code == m->isolated_run.code)
    m->isolated_run.frame = frame;
  _PyInterpreterFrame *f = internal_frame(frame);
  if (hold_observed_class(f->localsplus, f->f_code->co_nlocals)) {
    report_observed_class(m, frame);
    if (!is_listening(m)) return trace_result(m);
  }
  PyObject *verdict = PyObject_CallFunctionObjArgs(m->on_frame, (PyObject *)frame, nullptr);
  bool follow = verdict && PyObject_IsTrue(verdict) == 1;
  consume(m, frame, verdict);
  frame->f_trace_opcodes = follow;
  // Line events are not needed. When a generator resumes, the flag tells whether it is followed.
  frame->f_trace_lines = !follow && (internal_frame(frame)->f_code->co_flags & CO_GENERATOR);
  return trace_result(m);
}

void end_skip(Monitor *m, PyFrameObject *frame, PyObject *argument) {
  m->skip = Skip();
  if (m->dispatched) m->accounted = *m->dispatched;
  consume(m, frame, PyObject_CallFunctionObjArgs(m->on_join, argument, nullptr));
}

bool has_pending(const Monitor *m, const PyFrameObject *frame) {
  return !m->pending->empty() && m->pending->back().frame == frame;
}

Pending pop_pending(Monitor *m) {
  Pending p = m->pending->back();
  m->pending->pop_back();
  return p;
}

void report_result(Monitor *m, PyFrameObject *frame) {
  _PyInterpreterFrame *f = internal_frame(frame);
  Pending p = pop_pending(m);
  PyObject *stack = make_slot_tuple(stack_base(f), operand_depth(f));
  consume(m, frame,
          PyObject_CallFunctionObjArgs(m->on_result, p.token, (PyObject *)frame, stack, nullptr));
  Py_XDECREF(stack);
  release(m, p.token);
}

// Ends the isolated run at its target, with the offset, the locals and the operands there.
int end_isolated_run(Monitor *m, _PyInterpreterFrame *f, int offset) {
  PyObject *locals = make_slot_tuple(f->localsplus, f->f_code->co_nlocalsplus);
  PyObject *stack = make_slot_tuple(stack_base(f), operand_depth(f));
  m->isolated_run.reached = Py_BuildValue("(iNN)", offset, locals, stack);
  m->isolated_run.abandoned = true;
  return raise_abandoned();
}

// True if the operands of an instruction, or its frame, make it uninteresting.
bool is_filtered(const Monitor *m, PyFrameObject *frame, int opcode) {
  _PyInterpreterFrame *f = internal_frame(frame);
  switch (m->filter[opcode]) {
    case IGNORE:
      return true;
    case TEST:
      return !m->reports_numbers && is_plain(peek(f, 1));
    case PAIR:
      return !m->reports_numbers && is_plain(peek(f, 1)) && is_plain(peek(f, 2));
    case OBJECTS:
      return !m->reports_numbers && is_plain(peek(f, 1)) && is_plain(peek(f, 2)) &&
             !has_ambiguous_identity(peek(f, 1), peek(f, 2));
    case ITERATORS:
      return !m->reports_iterators && !has_heap_type(peek(f, 1));
    case ROOT_ONLY:
      return frame != m->root;
    case NUMBERS:
      return !m->reports_numbers;
    default:
      return false;
  }
}

void report_instruction(Monitor *m, PyFrameObject *frame, const Instruction &instruction, int offset_value) {
  _PyInterpreterFrame *f = internal_frame(frame);
  PyObject *stack = make_slot_tuple(stack_base(f), operand_depth(f));
  PyObject *op = PyLong_FromLong(instruction.opcode), *oparg = PyLong_FromLong(instruction.oparg);
  PyObject *offset = PyLong_FromLong(offset_value);
  if (stack) m->steps->push_back({frame, offset_value, Py_NewRef(stack)});
  PyObject *token = PyObject_CallFunctionObjArgs(m->on_instruction, (PyObject *)frame, op, oparg, offset,
                                                 stack, nullptr);
  Py_XDECREF(stack);
  Py_XDECREF(op);
  Py_XDECREF(oparg);
  Py_XDECREF(offset);
  if (!token) {
    handle_callback_error(m, frame);
  } else if (token == Py_None || !m->running) {
    Py_DECREF(token);
  } else {
    m->pending->push_back({frame, token});
  }
}

int handle_opcode(Monitor *m, PyFrameObject *frame) {
  if (m->isolated_run.code && ++m->isolated_run.instructions > MAX_ISOLATED_INSTRUCTIONS)
    m->isolated_run.abandoned = true;
  if (m->isolated_run.abandoned) return raise_abandoned();
  _PyInterpreterFrame *f = internal_frame(frame);
  int index = PyFrame_GetLasti(frame) / 2;
  const std::vector<Instruction> &code = decode(m, f->f_code);
  if (index < 0 || index >= (int)code.size()) return 0;
  const Instruction &instruction = code[index];
  const int offset = 2 * index;
  // Python 3.12 traces both the EXTENDED_ARG and then its instruction, which is reported already and
  // has not run.
  if (!instruction.first) return 0;
  if (m->skip.frame) {
    if (frame == m->skip.frame && is_at(instruction, offset, m->skip.end_offset)) {
      end_skip(m, frame, (PyObject *)frame);
      if (!is_listening(m)) return trace_result(m);
    } else if (!m->skip.tests || m->filter[instruction.opcode] != TEST || is_plain(peek(f, 1))) {
      return 0;
    }
  }
  if (!m->skip.frame && hold_observed_class(stack_base(f), operand_depth(f))) {
    report_observed_class(m, frame);
    if (!is_listening(m)) return trace_result(m);
  }
  if (!m->skip.frame && has_pending(m, frame)) {
    report_result(m, frame);
    if (!is_listening(m)) return trace_result(m);
  }
  if (!m->skip.frame && m->dispatched && *m->dispatched != m->accounted) {
    m->accounted = *m->dispatched;
    consume(m, frame,
            PyObject_CallFunctionObjArgs(m->on_unreported_operators, (PyObject *)frame, nullptr));
    if (!is_listening(m)) return trace_result(m);
  }
  m->instructions++;
  if (frame == m->isolated_run.frame && !m->skip.frame &&
      (offset == m->isolated_run.other_end_offset ||
       is_at(instruction, offset, m->isolated_run.end_offset)))
    return end_isolated_run(m, f, offset);
  if (is_filtered(m, frame, instruction.opcode)) return 0;
  m->reported++;
  release(m, pop_step(m, frame));
  if (!is_listening(m)) return trace_result(m);
  report_instruction(m, frame, instruction, offset);
  return trace_result(m);
}

// Ends the recording: a signal's handler has run in the program, and raised `error` or None.
void report_interruption(Monitor *m, PyFrameObject *frame, PyObject *error) {
  PyObject *result =
      PyObject_CallFunctionObjArgs(m->on_interruption, (PyObject *)frame, error, nullptr);
  if (!result) PyErr_Clear();
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
  const std::vector<Instruction> &code = decode(m, internal_frame(frame)->f_code);
  if (at < 0 || at >= (int)code.size()) return false;
  int opcode = code[at].opcode;
  if (PyErr_GivenExceptionMatches(PyTuple_GET_ITEM(exception, 0), PyExc_KeyboardInterrupt))
    return opcode != RAISE_VARARGS && opcode != RERAISE;
  return !m->isolated_run.code && checks_for_requests(opcode) && PyExceptionInstance_Check(error) &&
         is_made_without_arguments(error);
}

void handle_exception(Monitor *m, PyFrameObject *frame, PyObject *exception) {
  if (is_interruption(m, frame, exception)) {
    report_interruption(m, frame, PyTuple_GET_ITEM(exception, 1));
    if (m->isolated_run.code && !m->interruption.type) {  // the program itself receives it
      m->interruption.type = Py_NewRef(PyTuple_GET_ITEM(exception, 0));
      m->interruption.value = Py_NewRef(PyTuple_GET_ITEM(exception, 1));
      m->interruption.traceback = Py_NewRef(PyTuple_GET_ITEM(exception, 2));
      m->isolated_run.abandoned = true;
    }
    return;
  }
  if (ends_loop(m, frame, exception) || !has_pending(m, frame)) return;
  // The pending instruction raised instead of returning a result.
  Pending p = pop_pending(m);
  consume(m, frame,
          PyObject_CallFunctionObjArgs(m->on_exception, p.token, (PyObject *)frame, exception, nullptr));
  release(m, p.token);
}

void handle_return(Monitor *m, PyFrameObject *frame, PyObject *value, bool was_followed) {
  if (frame == m->skip.frame) end_skip(m, frame, Py_None);  // an exception left the frame
  while (has_pending(m, frame)) release(m, pop_pending(m).token);
  if (was_followed && m->on_return != Py_None)
    consume(m, frame, PyObject_CallFunctionObjArgs(m->on_return, (PyObject *)frame,
                                                   value ? value : null_marker, nullptr));
  release(m, pop_step(m, frame));
}

int handle_event(Monitor *m, PyFrameObject *frame, int event, PyObject *argument) {
  // No frame keeps the mark after the run: Python 3.12.1 calls the trace function of a marked frame's
  // thread, even if it has none, whenever another thread has one.
  const bool was_followed = frame->f_trace_opcodes;
  if (!m->running || event == PyTrace_RETURN) frame->f_trace_opcodes = 0;
  if (!m->running) return 0;
  switch (event) {
    case PyTrace_CALL:
      return handle_call(m, frame);
    case PyTrace_OPCODE:
      return handle_opcode(m, frame);
    case PyTrace_EXCEPTION:
      handle_exception(m, frame, argument);
      return 0;
    case PyTrace_RETURN:
      handle_return(m, frame, argument, was_followed);
      return 0;
    default:
      return 0;
  }
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

// The monitor whose trace function is installed on this thread; owned. The interpreter passes the
// trace function the object that `sys.gettrace` returns: that of the program's caller.
thread_local Monitor *installed = nullptr;

int trace(PyObject *, PyFrameObject *frame, int event, PyObject *argument) {
  Monitor *m = installed;
  if (!m) return 0;
  Interrupts *interrupts = m->interrupts;  // the monitor may be released meanwhile
  OwnWork *work = m->work;
  if (interrupts && m->running && interrupts->passed.exchange(false) && run_signal_handlers(m, frame))
    return -1;
  work->set_depth(work->depth + 1);
  int result = handle_event(m, frame, event, argument);
  if (!m->isolated_run.code) {
    if (m->interruption.raise()) result = -1;
    if (m->running && work->holds_exception()) report_exception_to_come(m, frame);
  }
  work->set_depth(work->depth - 1);
  if (interrupts && !work->depth && interrupts->waiting) interrupts->deliver();
  return result;
}

PyObject *monitor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static const char *names[] = {"on_frame", "on_instruction", "on_result", "on_exception", "on_return",
                                "on_unreported_operators", "on_join", "on_interruption",
                                "on_observed_class", "filter",
                                nullptr};
  PyObject *frame, *instruction, *result, *exception, *ret, *unreported_operators, *join, *interruption,
      *observed_class;
  Py_buffer filter;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOOy*", (char **)names, &frame, &instruction,
                                   &result, &exception, &ret, &unreported_operators, &join, &interruption,
                                   &observed_class, &filter))
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
    m->on_unreported_operators = Py_NewRef(unreported_operators);
    m->on_join = Py_NewRef(join);
    m->on_interruption = Py_NewRef(interruption);
    m->on_observed_class = Py_NewRef(observed_class);
    m->skip = Skip();
    m->isolated_run = IsolatedRun();
    m->interruption = Interruption();
    m->dispatched = nullptr;
    m->accounted = 0;
    m->root = nullptr;
    m->pending = new std::vector<Pending>();
    m->steps = new std::vector<Step>();
    m->codes = new std::unordered_map<PyCodeObject *, std::vector<Instruction>>();
    memcpy(m->filter, filter.buf, 256);
    m->running = false;
    m->interrupts = nullptr;
    m->work = nullptr;
    m->thread = 0;
    m->suspension = nullptr;
    m->is_collecting = false;
  }
  PyBuffer_Release(&filter);
  return (PyObject *)m;
}

void release_references(Monitor *m) {
  drop_references(m);
  std::unordered_map<PyCodeObject *, std::vector<Instruction>> codes;
  codes.swap(*m->codes);
  for (auto &c : codes) Py_DECREF(c.first);
  Py_CLEAR(m->on_frame);
  Py_CLEAR(m->on_instruction);
  Py_CLEAR(m->on_result);
  Py_CLEAR(m->on_exception);
  Py_CLEAR(m->on_return);
  Py_CLEAR(m->on_unreported_operators);
  Py_CLEAR(m->on_join);
  Py_CLEAR(m->on_interruption);
  Py_CLEAR(m->suspension);
  Py_CLEAR(m->on_observed_class);
}

void monitor_dealloc(PyObject *self) {
  Monitor *m = (Monitor *)self;
  PyObject_GC_UnTrack(self);
  release_references(m);
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
  Py_VISIT(m->on_unreported_operators);
  Py_VISIT(m->on_join);
  Py_VISIT(m->on_interruption);
  Py_VISIT(m->suspension);
  Py_VISIT(m->on_observed_class);
  for (Pending p : *m->pending) Py_VISIT(p.token);
  for (Step s : *m->steps) Py_VISIT(s.stack);
  return 0;
}

int monitor_clear(PyObject *self) {
  release_references((Monitor *)self);
  return 0;
}

// Begins or ends the effect of a garbage collection: its finalizers are not followed, nor is its code
// part of the program.
int change_suspension(Monitor *m, long difference) {
  PyObject *depth = PyObject_GetAttrString(m->suspension, "depth");
  if (!depth) return -1;
  PyObject *changed = PyLong_FromLong(PyLong_AsLong(depth) + difference);
  Py_DECREF(depth);
  int failed = changed ? PyObject_SetAttrString(m->suspension, "depth", changed) : -1;
  Py_XDECREF(changed);
  return failed;
}

PyObject *on_collection(PyObject *self, PyObject *args, bool begins) {
  Monitor *m = (Monitor *)self;
  const char *phase;
  PyObject *info;
  if (!PyArg_ParseTuple(args, "sO", &phase, &info)) return nullptr;
  bool starts = strcmp(phase, "start") == 0;
  if (m->thread == PyThread_get_thread_ident() && m->suspension && starts == begins &&
      m->is_collecting != begins) {
    m->is_collecting = begins;
    if (change_suspension(m, begins ? 1 : -1) < 0) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject *monitor_before_collection(PyObject *self, PyObject *args) {
  return on_collection(self, args, true);
}

PyObject *monitor_after_collection(PyObject *self, PyObject *args) {
  return on_collection(self, args, false);
}

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

PyObject *call_as_caller(PyObject *, PyObject *args);

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

// Ends the reports at once, before the program has ended.
PyObject *monitor_stop(PyObject *self, PyObject *) {
  ((Monitor *)self)->running = false;
  drop_references((Monitor *)self);
  Py_RETURN_NONE;
}

// Marks all operators dispatched up to now as known.
PyObject *monitor_account(PyObject *self, PyObject *) {
  Monitor *m = (Monitor *)self;
  if (m->dispatched) m->accounted = *m->dispatched;
  Py_RETURN_NONE;
}

// Discards the instructions that await a result.
PyObject *monitor_drop_pending(PyObject *self, PyObject *) {
  std::vector<Pending> pending;
  pending.swap(*((Monitor *)self)->pending);
  for (Pending p : pending) Py_DECREF(p.token);
  Py_RETURN_NONE;
}

// Returns offset and operands of a frame's last reported instruction; None for a frame not followed.
PyObject *monitor_step(PyObject *self, PyObject *frame) {
  for (const Step &s : *((Monitor *)self)->steps)
    if ((PyObject *)s.frame == frame) return Py_BuildValue("(iO)", s.offset, s.stack);
  Py_RETURN_NONE;
}

PyObject *monitor_set_root(PyObject *self, PyObject *frame) {
  ((Monitor *)self)->root = (PyFrameObject *)frame;  // compared, never followed
  Py_RETURN_NONE;
}

// True if a native call by an instruction of this frame is active.
PyObject *monitor_is_waiting(PyObject *self, PyObject *frame) {
  Monitor *m = (Monitor *)self;
  return PyBool_FromLong(!m->pending->empty() && (PyObject *)m->pending->back().frame == frame);
}

PyObject *monitor_watch_numbers(PyObject *self, PyObject *) {
  ((Monitor *)self)->reports_numbers = true;
  Py_RETURN_NONE;
}

PyObject *monitor_watch_iterators(PyObject *self, PyObject *) {
  ((Monitor *)self)->reports_iterators = true;
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
  int end_offset, tests;
  if (!PyArg_ParseTuple(args, "O!ip", &PyFrame_Type, &frame, &end_offset, &tests)) return nullptr;
  Skip &skip = ((Monitor *)self)->skip;
  skip.frame = (PyFrameObject *)frame;
  skip.end_offset = end_offset;
  skip.tests = tests;
  Py_RETURN_NONE;
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

PyObject *monitor_counts(PyObject *self, PyObject *) {
  Monitor *m = (Monitor *)self;
  return Py_BuildValue("ll", m->instructions, m->reported);
}

PyMethodDef monitor_methods[] = {
    {"run", monitor_run, METH_VARARGS,
     "(active, run, suspension, counter, start_counting, stop_counting, call): call a function as "
     "`call_as_caller` does with the arguments `call`, under the monitor. Sets `active.run` "
     "meanwhile. `counter` is the address of this thread's count of operators."},
    {"before_collection", monitor_before_collection, METH_VARARGS, "A callback of gc.callbacks."},
    {"after_collection", monitor_after_collection, METH_VARARGS, "A callback of gc.callbacks."},
    {"stop", monitor_stop, METH_NOARGS, "Report nothing more."},
    {"account", monitor_account, METH_NOARGS, "Mark all operators dispatched so far as known."},
    {"set_root", monitor_set_root, METH_O, "Set the frame whose reads of its arguments are reported."},
    {"drop_pending", monitor_drop_pending, METH_NOARGS, "Discard the instructions that await a result."},
    {"step", monitor_step, METH_O,
     "Return offset and operands of a frame's last reported instruction, or None."},
    {"is_waiting", monitor_is_waiting, METH_O, "True if a frame waits for the result of native code."},
    {"watch_numbers", monitor_watch_numbers, METH_NOARGS, "Report instructions on plain numbers, too."},
    {"watch_iterators", monitor_watch_iterators, METH_NOARGS, "Report the iterations of loops."},
    {"set_filter", monitor_set_filter, METH_O, "Set which instructions are reported from now on."},
    {"skip", monitor_skip, METH_VARARGS,
     "(frame, until, tests): report nothing until `frame` is about to run the instruction at that "
     "offset (-1: returns); then call `on_join(frame)`, or `on_join(None)` if it raised."},
    {"explore", monitor_explore, METH_VARARGS,
     "(function, until, again): run a function in the trace hook, traced, until its frame is about "
     "to run the instruction at one of these offsets (-1: returns). Returns the offset, the locals "
     "and the operands there; None if the run was abandoned. Raises the function's exceptions."},
    {"abandon", monitor_abandon, METH_NOARGS, "Unwind the run that `explore` began."},
    {"counts", monitor_counts, METH_NOARGS, "(instructions seen, instructions reported)."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject monitor_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool is_frame(PyObject *frame) {
  if (PyFrame_Check(frame)) return true;
  PyErr_SetString(PyExc_TypeError, "expected a frame");
  return false;
}

PyObject *frame_stack(PyObject *, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  _PyInterpreterFrame *f = internal_frame((PyFrameObject *)frame);
  return make_slot_tuple(stack_base(f), operand_depth(f));
}

// Returns the lowest operands of a frame with a known number of them, such as a generator's.
PyObject *frame_operands(PyObject *, PyObject *args) {
  PyObject *frame;
  int count;
  if (!PyArg_ParseTuple(args, "O!i", &PyFrame_Type, &frame, &count)) return nullptr;
  return make_slot_tuple(stack_base(internal_frame((PyFrameObject *)frame)), count);
}

PyObject *frame_locals(PyObject *, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  _PyInterpreterFrame *f = internal_frame((PyFrameObject *)frame);
  return make_slot_tuple(f->localsplus, f->f_code->co_nlocalsplus);
}

PyObject *frame_function(PyObject *, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  PyObject *function = function_of(internal_frame((PyFrameObject *)frame));
  return Py_NewRef(function ? function : Py_None);
}

// Replaces an operand of a frame that is in the trace hook; depth 1 is the top of the stack.
PyObject *frame_set_operand(PyObject *, PyObject *args) {
  PyObject *frame, *value;
  int depth;
  if (!PyArg_ParseTuple(args, "O!iO", &PyFrame_Type, &frame, &depth, &value)) return nullptr;
  _PyInterpreterFrame *f = internal_frame((PyFrameObject *)frame);
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

// Replaces the local variable in a slot of a frame that is in the trace hook or in a call.
PyObject *frame_set_local(PyObject *, PyObject *args) {
  PyObject *frame, *value;
  int slot;
  if (!PyArg_ParseTuple(args, "O!iO", &PyFrame_Type, &frame, &slot, &value)) return nullptr;
  _PyInterpreterFrame *f = internal_frame((PyFrameObject *)frame);
  if (slot < 0 || slot >= f->f_code->co_nlocals) {
    PyErr_SetString(PyExc_IndexError, "no such local");
    return nullptr;
  }
  PyObject *old = f->localsplus[slot];
  f->localsplus[slot] = Py_NewRef(value);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

// Returns an equal number or string that is a new object, even for small integers.
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
  PyLongObject *source = (PyLongObject *)value;
#if PY_VERSION_HEX >= 0x030C0000
  Py_ssize_t digits = (Py_ssize_t)(source->long_value.lv_tag >> 3);
  PyLongObject *copy = _PyLong_New(digits);
  if (!copy) return nullptr;
  for (Py_ssize_t i = 0; i < (digits ? digits : 1); i++)
    copy->long_value.ob_digit[i] = digits ? source->long_value.ob_digit[i] : 0;
  copy->long_value.lv_tag = source->long_value.lv_tag;
#else
  Py_ssize_t size = Py_SIZE(source), digits = size < 0 ? -size : size;
  PyLongObject *copy = _PyLong_New(digits);
  if (!copy) return nullptr;
  for (Py_ssize_t i = 0; i < (digits ? digits : 1); i++) copy->ob_digit[i] = digits ? source->ob_digit[i] : 0;
  Py_SET_SIZE(copy, size);
#endif
  return (PyObject *)copy;
}

PyObject *lookup_in_type(PyObject *, PyObject *args) {
  PyObject *type, *name;
  if (!PyArg_ParseTuple(args, "O!U", &PyType_Type, &type, &name)) return nullptr;
  PyObject *found = _PyType_Lookup((PyTypeObject *)type, name);
  if (!found && PyErr_Occurred()) return nullptr;
  return Py_NewRef(found ? found : null_marker);
}

// Returns the dictionary of an instance without its class's `__dict__` property. None for classes,
// which store their attributes differently.
PyObject *instance_dict(PyObject *, PyObject *value) {
  if (PyType_Check(value)) Py_RETURN_NONE;
  PyObject *found = PyObject_GenericGetDict(value, nullptr);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  Py_RETURN_NONE;
}

// `isinstance` by the class of a value alone: `isinstance` reads the value's `__class__` as well.
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

int count_reference(PyObject *value, void *count) {
  Count *c = (Count *)count;
  if (value == c->wanted) c->found++;
  return 0;
}

Py_ssize_t occurrences(PyObject **slots, Py_ssize_t count, PyObject *value) {
  Py_ssize_t found = 0;
  for (Py_ssize_t i = 0; i < count; i++) found += slots[i] == value;
  return found;
}

// Replaces the references to `old` in the memory of `holder`: a tuple, a slice, a suspended generator.
// tp_traverse reports how many references there are; unless the same number of words holds the
// pointer, nothing is replaced.
PyObject *replace_references(PyObject *, PyObject *args) {
  PyObject *holder, *old, *replacement;
  if (!PyArg_ParseTuple(args, "OOO", &holder, &old, &replacement)) return nullptr;
  PyTypeObject *type = Py_TYPE(holder);
  if (!PyObject_IS_GC(holder) || !type->tp_traverse || PyType_Check(holder)) Py_RETURN_FALSE;
  PyObject **slots = (PyObject **)((char *)holder + sizeof(PyObject));
  Py_ssize_t bytes = type->tp_basicsize - sizeof(PyObject);
  if (type->tp_itemsize) {
    Py_ssize_t size = Py_SIZE(holder);
    bytes += type->tp_itemsize * (size < 0 ? -size : size);
  }
  Py_ssize_t count = bytes / (Py_ssize_t)sizeof(PyObject *);
  if (PyGen_CheckExact(holder)) {
    _PyInterpreterFrame *f = (_PyInterpreterFrame *)((PyGenObject *)holder)->gi_iframe;
    if (((PyGenObject *)holder)->gi_frame_state >= FRAME_EXECUTING) Py_RETURN_FALSE;
    slots = f->localsplus;
    count = f->stacktop;
  }
  Count reported_references{old, 0};
  type->tp_traverse(holder, count_reference, &reported_references);
  if (!reported_references.found || occurrences(slots, count, old) != reported_references.found)
    Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (slots[i] != old) continue;
    slots[i] = Py_NewRef(replacement);
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

bool is_in_folder(_PyInterpreterFrame *f, PyObject *folder) {
  if (_PyFrame_IsIncomplete(f)) return true;
  PyObject *file = ((PyCodeObject *)f->f_code)->co_filename;
  return PyUnicode_Tailmatch(file, folder, 0, PY_SSIZE_T_MAX, -1) == 1;
}

// The program may inspect its callers, as `warnings.warn(stacklevel=2)` and loggers do. A new frame's
// caller is the thread's current frame; therefore the innermost frame outside this package becomes
// current during the call. The interpreter continues with this package's frames by its C stack.
// The program is no own work: interruptions are not deferred in it, unless an isolated run calls it.
PyObject *call_as_caller(PyObject *, PyObject *args) {
  PyObject *folder, *function, *positional, *keywords = nullptr;
  if (!PyArg_ParseTuple(args, "UOO!|O!", &folder, &function, &PyTuple_Type, &positional,
                        &PyDict_Type, &keywords))
    return nullptr;
  _PyInterpreterFrame **current = &PyThreadState_Get()->cframe->current_frame;
  _PyInterpreterFrame *ours = *current, *caller = ours;
  while (caller && is_in_folder(caller, folder)) caller = caller->previous;
  if (caller) *current = caller;
  OwnWork *work = interrupts->own_work();
  const bool is_isolated = installed && installed->isolated_run.code;
  const int depth = is_isolated ? 0 : work->depth;
  if (depth) work->set_depth(0);
  if (depth && work->is_main && interrupts->waiting) interrupts->deliver();
  PyObject *result = PyObject_Call(function, positional, keywords);
  if (depth) work->set_depth(depth);
  *current = ours;
  return result;
}

PyObject *use_interrupts(PyObject *, PyObject *address) {
  interrupts = (Interrupts *)PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {
    {"use_interrupts", use_interrupts, METH_O, "Set the address of the state of deferred signals."},
    {"call_as_caller", call_as_caller, METH_VARARGS,
     "(folder, function, args, kwargs): call it as the innermost caller with code outside `folder`."},
    {"is_of", (PyCFunction)(void (*)(void))is_of, METH_FASTCALL,
     "(value, classes): True if it is an instance, by its class alone."},
    {"frame_stack", frame_stack, METH_O, "Return the operand stack of a frame, bottom first."},
    {"frame_operands", frame_operands, METH_VARARGS, "(frame, count): return its lowest operands."},
    {"frame_locals", frame_locals, METH_O,
     "Return locals, cells and free variables; cells as objects, not their contents."},
    {"frame_function", frame_function, METH_O, "Return the function object that a frame runs."},
    {"frame_set_operand", frame_set_operand, METH_VARARGS, "(frame, depth, value)"},
    {"frame_set_local", frame_set_local, METH_VARARGS, "(frame, slot, value)"},
    {"replace_references", replace_references, METH_VARARGS,
     "(holder, old, new): True if all references of the holder itself were replaced."},
    {"tuple_set", tuple_set, METH_VARARGS, "(tuple, index, value): replace an element by an equal one."},
    {"fresh_plain", fresh_plain, METH_O, "Return an equal int, float or str that is a new object."},
    {"lookup_in_type", lookup_in_type, METH_VARARGS,
     "(type, name): return the attribute found in the MRO, unbound, or NULL."},
    {"instance_dict", instance_dict, METH_O, "Return the dictionary of an instance, or None."},
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
  abandoned_error =
      PyErr_NewException("_magpy_monitor.Abandoned", PyExc_BaseException, nullptr);
  if (!abandoned_error) return nullptr;
  null_marker = PyObject_CallFunction((PyObject *)&PyBaseObject_Type, nullptr);
  if (!null_marker || PyModule_AddObjectRef(m, "NULL", null_marker) < 0 ||
      PyModule_AddObjectRef(m, "Monitor", (PyObject *)&monitor_type) < 0) {
    Py_DECREF(m);
    return nullptr;
  }
  return m;
}

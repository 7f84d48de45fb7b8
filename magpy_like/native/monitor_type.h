// `Monitor`: reports a program's instructions to callbacks.
#pragma once
#include "garbage_collections.h"
#include "monitored_call.h"

namespace {

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
    m->codes = new DecodedCode();
    m->requested = new std::unordered_set<PyCodeObject *>();
    m->followed = new std::unordered_set<PyFrameObject *>();
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
  DecodedCode codes;
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
  delete m->requested;
  delete m->followed;
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
PyObject *monitor_waits_for(PyObject *self, PyObject *frame) {
  Monitor *m = (Monitor *)self;
  const bool waits = !m->pending->empty() && (PyObject *)m->pending->back().frame == frame;
  return Py_NewRef(waits ? m->pending->back().token : Py_None);
}

PyObject *monitor_is_followed(PyObject *self, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  return PyBool_FromLong(is_followed((Monitor *)self, (PyFrameObject *)frame));
}

PyObject *monitor_follow(PyObject *self, PyObject *frame) {
  if (!is_frame(frame) || !follow((Monitor *)self, (PyFrameObject *)frame)) return nullptr;
  Py_RETURN_NONE;
}

PyObject *monitor_unfollow(PyObject *self, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  unfollow((Monitor *)self, (PyFrameObject *)frame);
  Py_RETURN_NONE;
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
    {"waits_for", monitor_waits_for, METH_O,
     "Return the token of the instruction whose result a frame waits for, or None."},
    {"is_followed", monitor_is_followed, METH_O, "True if instructions of a frame are reported."},
    {"follow", monitor_follow, METH_O, "Report the instructions of a frame."},
    {"unfollow", monitor_unfollow, METH_O, "Report no more instructions of a frame."},
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

}  // namespace

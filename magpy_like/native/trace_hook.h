// The trace hook of the monitor.
//
// CPython calls `trace` for every event of the monitored thread. The cheap decisions are made here
// (is a rule interested in this instruction? are its operands plain scalars?); only instructions that
// may change the RefGraph are reported to Python callbacks. `PyEval_SetTrace` is used because a trace
// function in Python copies all locals into a dictionary at every event.
#pragma once
#include "instruction_events.h"
#include "instruction_filter.h"
#include "isolated_runs.h"
#include "monitor_interruptions.h"
#include "observing_metaclasses.h"

namespace {

void report_observed_class(Monitor *m, PyFrameObject *frame) {
  consume(m, frame, PyObject_CallFunctionObjArgs(m->on_observed_class, (PyObject *)frame, nullptr));
}

int handle_call(Monitor *m, PyFrameObject *frame) {
  // In an abandoned run, new frames are those of destructors.
  if ((m->skip.frame && !m->skip.tests) || m->isolated_run.abandoned) {
    unfollow(m, frame);
    frame->f_trace_lines = 0;
    return 0;
  }
  if (m->isolated_run.code && !m->isolated_run.frame &&
      (PyObject *)code_of(internal_frame(frame)) == m->isolated_run.code)
    m->isolated_run.frame = frame;
  _PyInterpreterFrame *f = internal_frame(frame);
  if (hold_observed_class(f->localsplus, code_of(f)->co_nlocals)) {
    report_observed_class(m, frame);
    if (!is_listening(m)) return trace_result(m);
  }
  PyObject *verdict = PyObject_CallFunctionObjArgs(m->on_frame, (PyObject *)frame, nullptr);
  bool follows = verdict && PyObject_IsTrue(verdict) == 1;
  consume(m, frame, verdict);
  if (!follows) {
    unfollow(m, frame);
  } else if (!follow(m, frame)) {  // the program has freed the tool
    PyErr_Clear();
    report_interruption(m, frame, Py_None);
  }
  // Line events are not needed. When a generator resumes, the flag tells whether it is followed.
  frame->f_trace_lines = !follows && (code_of(internal_frame(frame))->co_flags & CO_GENERATOR);
  return trace_result(m);
}

void end_skip(Monitor *m, PyFrameObject *frame, PyObject *argument) {
  m->skip = Skip();
  if (m->dispatched) m->accounted = *m->dispatched;
  consume(m, frame, PyObject_CallFunctionObjArgs(m->on_join, argument, nullptr));
}

void report_result(Monitor *m, PyFrameObject *frame) {
  _PyInterpreterFrame *f = internal_frame(frame);
  Pending p = pop_pending(m);
  PyObject *stack = make_stack_tuple(f);
  consume(m, frame,
          PyObject_CallFunctionObjArgs(m->on_result, p.token, (PyObject *)frame, stack, nullptr));
  Py_XDECREF(stack);
  release(m, p.token);
}

void report_instruction(Monitor *m, PyFrameObject *frame, const Instruction &instruction, int offset_value) {
  _PyInterpreterFrame *f = internal_frame(frame);
  PyObject *stack = make_stack_tuple(f);
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
  const std::vector<Instruction> &code = decode(*m->codes, code_of(f));
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
    } else if (!m->skip.tests || !tests_object(m, f, instruction)) {
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

// True if an exception is the StopIteration that ends a for loop.
bool ends_loop(Monitor *m, PyFrameObject *frame, PyObject *arg) {
  int at = PyFrame_GetLasti(frame) / 2;
  const std::vector<Instruction> &code = decode(*m->codes, code_of(internal_frame(frame)));
  if (at < 0 || at >= (int)code.size()) return false;
  bool loop = code[at].opcode == FOR_ITER || (at && code[at - 1].opcode == FOR_ITER);
  return loop && arg && PyTuple_Check(arg) && PyTuple_GET_SIZE(arg) &&
         PyErr_GivenExceptionMatches(PyTuple_GET_ITEM(arg, 0), PyExc_StopIteration);
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
  const bool was_followed = is_followed(m, frame);
  if (!m->running || event == PyTrace_RETURN) unfollow(m, frame);
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

// The monitor whose trace function is installed on this thread; owned. The interpreter passes the
// trace function the object that `sys.gettrace` returns: that of the program's caller.
thread_local Monitor *installed = nullptr;

int report(PyFrameObject *frame, int event, PyObject *argument) {
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

int trace(PyObject *, PyFrameObject *frame, int event, PyObject *argument) {
#if EVENTS_BELONG_TO_CODE
  if (event == PyTrace_OPCODE) {  // requested by a debugger: it takes the tool's events
    if (installed && installed->running) report_interruption(installed, frame, Py_None);
    return 0;
  }
#endif
  return report(frame, event, argument);
}

#if EVENTS_BELONG_TO_CODE
// The callback of the tool: (code, offset).
PyObject *on_instruction_event(PyObject *, PyObject *const *, Py_ssize_t) {
  PyFrameObject *frame = PyEval_GetFrame();
  if (!installed || !frame || PyThreadState_Get()->c_tracefunc != trace) Py_RETURN_NONE;
  if (!is_followed(installed, frame)) Py_RETURN_NONE;
  Py_INCREF(frame);
  int failed = report(frame, PyTrace_OPCODE, Py_None);
  Py_DECREF(frame);
  if (failed) return nullptr;
  Py_RETURN_NONE;
}
#endif

}  // namespace

// State of a monitor, and of its run.
#pragma once
#include "instructions.h"
#include "interrupts.h"

#include <unordered_set>

namespace {

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

// Nothing is reported until `frame` reaches an offset. With `tests`, tests of values that are not
// plain are: in a run on fake tensors, their results are not known.
struct Skip {
  PyFrameObject *frame = nullptr;  // borrowed, only compared
  int end_offset = 0;
  bool tests = false;
};

// A run of a part of the program in isolation, until its first frame reaches one of two offsets.
struct IsolatedRun {
  PyObject *code = nullptr;
  PyFrameObject *frame = nullptr;  // borrowed, only compared
  int end_offset = 0, other_end_offset = 0;
  long instructions = 0;
  bool abandoned = false;
  PyObject *reached = nullptr;  // owned: (offset, locals, operands) at the end
};

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
  DecodedCode *codes;
  std::unordered_set<PyCodeObject *> *requested;   // code with events of instructions (instruction_events.h)
  std::unordered_set<PyFrameObject *> *followed;   // borrowed, only compared; where frames have no mark
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

// True if the monitor still listens after a callback.
bool is_listening(const Monitor *m) { return m->running && !m->isolated_run.abandoned; }

bool has_pending(const Monitor *m, const PyFrameObject *frame) {
  return !m->pending->empty() && m->pending->back().frame == frame;
}

Pending pop_pending(Monitor *m) {
  Pending p = m->pending->back();
  m->pending->pop_back();
  return p;
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

}  // namespace

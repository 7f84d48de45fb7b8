// Decides whether an instruction is reported, by the rules for its opcode and by its operands.
#pragma once
#include "monitor_state.h"
#include "plain_values.h"

namespace {

// When an instruction is reported: `when` in annotations/opcodes.yaml.
enum Filter : unsigned char {
  IGNORE = 0, ALWAYS = 1, TEST = 2, PAIR = 3, ROOT_ONLY = 4, ITERATORS = 5, NUMBERS = 6, OBJECTS = 7
};

// True for an instance of a heap type, whose methods may be Python code.
bool has_heap_type(PyObject *v) { return v && (Py_TYPE(v)->tp_flags & Py_TPFLAGS_HEAPTYPE); }

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

}  // namespace

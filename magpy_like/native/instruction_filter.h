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

// The flag in the argument of COMPARE_OP by which it tests its own result, from CPython 3.13 on.
constexpr int TESTS_RESULT = PY_VERSION_HEX >= 0x030D0000 ? 16 : 0;

// True if an instruction tests the truth of a value that is not plain, or may do so.
bool tests_object(const Monitor *m, _PyInterpreterFrame *f, const Instruction &instruction) {
  if (instruction.opcode == COMPARE_OP && instruction.oparg & TESTS_RESULT)
    return !is_plain(peek(f, 1)) || !is_plain(peek(f, 2));
  return m->filter[instruction.opcode] == TEST && !is_plain(peek(f, 1));
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

}  // namespace

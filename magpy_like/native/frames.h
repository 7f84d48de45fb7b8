// Access to frames: their operands, local variables and functions. This header comes before others that
// include Python.
#pragma once
#include "interpreter_frame.h"
#include "stack_depth.h"

namespace {

PyObject *null_marker;  // an empty stack slot or an unbound local

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

// Returns the operand stack of a frame, bottom first.
PyObject *make_stack_tuple(_PyInterpreterFrame *f) { return make_slot_tuple(stack_base(f), operand_depth(f)); }

// Returns locals, cells and free variables of a frame.
PyObject *make_locals_tuple(_PyInterpreterFrame *f) {
  return make_slot_tuple(f->localsplus, code_of(f)->co_nlocalsplus);
}

bool is_frame(PyObject *frame) {
  if (PyFrame_Check(frame)) return true;
  PyErr_SetString(PyExc_TypeError, "expected a frame");
  return false;
}

PyObject *frame_stack(PyObject *, PyObject *frame) {
  if (!is_frame(frame)) return nullptr;
  return make_stack_tuple(internal_frame((PyFrameObject *)frame));
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
  return make_locals_tuple(internal_frame((PyFrameObject *)frame));
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
  if (slot < 0 || slot >= code_of(f)->co_nlocals) {
    PyErr_SetString(PyExc_IndexError, "no such local");
    return nullptr;
  }
  PyObject *old = f->localsplus[slot];
  f->localsplus[slot] = Py_NewRef(value);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

}  // namespace

// The interpreter's own frames: the fields that differ between versions of CPython. This header comes
// before others that include Python.
#pragma once
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#include <frameobject.h>
#undef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#include <opcode.h>

namespace {

_PyInterpreterFrame *internal_frame(PyFrameObject *frame) { return frame->f_frame; }

PyCodeObject *code_of(const _PyInterpreterFrame *f) {
#if PY_VERSION_HEX >= 0x030D0000
  return (PyCodeObject *)f->f_executable;
#else
  return f->f_code;
#endif
}

PyObject *function_of(_PyInterpreterFrame *f) {
#if PY_VERSION_HEX >= 0x030C0000
  return f->f_funcobj;
#else
  return (PyObject *)f->f_func;
#endif
}

// Where a thread keeps the frame that is the caller of the next one.
_PyInterpreterFrame **current_frame_of(PyThreadState *thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return &thread->current_frame;
#else
  return &thread->cframe->current_frame;
#endif
}

}  // namespace

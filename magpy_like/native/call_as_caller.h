// Calls as by the innermost frame of the program, which finds no frame of this package among its callers.
#pragma once
#include "trace_hook.h"

namespace {

bool is_in_folder(_PyInterpreterFrame *f, PyObject *folder) {
  if (_PyFrame_IsIncomplete(f)) return true;
  PyObject *file = code_of(f)->co_filename;
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
  _PyInterpreterFrame **current = current_frame_of(PyThreadState_Get());
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

}  // namespace

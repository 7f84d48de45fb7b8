// Events of instructions: which frames have them.
//
// Up to CPython 3.12, the frames that are followed are marked by `f_trace_opcodes`, and the interpreter
// sends their events to the trace function. CPython 3.13 sends those of a code object, to all its frames
// in all threads, and they stop as soon as a frame without the mark runs an instruction, even in a thread
// without a trace function. A tool of `sys.monitoring` keeps its events until it ends them: there the
// monitors of all threads share one, for the code of the frames that they follow. The frames have no
// mark: the interpreter would send the events to the trace function instead, and only to one of the two.
#pragma once
#include "monitor_state.h"

#define EVENTS_BELONG_TO_CODE (PY_VERSION_HEX >= 0x030D0000)

namespace {

#if EVENTS_BELONG_TO_CODE

struct InstructionTool {
  PyObject *set_local_events = nullptr;             // owned: sys.monitoring.set_local_events
  PyObject *number = nullptr, *instruction = nullptr, *nothing = nullptr;  // owned: its arguments
  std::unordered_map<PyCodeObject *, int> users;    // by code, owned: the number of monitors that follow it

  bool set(PyCodeObject *code, PyObject *events) {
    PyObject *done =
        PyObject_CallFunctionObjArgs(set_local_events, number, (PyObject *)code, events, nullptr);
    Py_XDECREF(done);
    return done;
  }
};

InstructionTool tool;

// Sets the tool: (its number, sys.monitoring.set_local_events, the event).
PyObject *use_instruction_tool(PyObject *, PyObject *args) {
  PyObject *number, *set_local_events, *instruction;
  if (!PyArg_ParseTuple(args, "OOO", &number, &set_local_events, &instruction)) return nullptr;
  Py_XSETREF(tool.number, Py_NewRef(number));
  Py_XSETREF(tool.set_local_events, Py_NewRef(set_local_events));
  Py_XSETREF(tool.instruction, Py_NewRef(instruction));
  Py_XSETREF(tool.nothing, PyLong_FromLong(0));
  Py_RETURN_NONE;
}

// Requests the events of a frame's code until the run ends. False with an exception if that fails.
bool request_instructions(Monitor *m, PyFrameObject *frame) {
  PyCodeObject *code = code_of(internal_frame(frame));
  if (!m->requested->insert(code).second) return true;
  int &users = tool.users[(PyCodeObject *)Py_NewRef((PyObject *)code)];
  if (users++) {
    Py_DECREF(code);
    return true;
  }
  return tool.set(code, tool.instruction);
}

bool is_followed(const Monitor *m, PyFrameObject *frame) { return m->followed->count(frame); }

void unfollow(Monitor *m, PyFrameObject *frame) { m->followed->erase(frame); }

// Follows a frame. False with an exception if that fails.
bool follow(Monitor *m, PyFrameObject *frame) {
  m->followed->insert(frame);
  return request_instructions(m, frame);
}

// Ends the events that a run has requested.
void end_requests(Monitor *m) {
  for (PyCodeObject *code : *m->requested) {
    auto found = tool.users.find(code);
    if (--found->second) continue;
    tool.users.erase(found);
    if (!tool.set(code, tool.nothing)) PyErr_Clear();
    Py_DECREF(code);
  }
  m->requested->clear();
  m->followed->clear();
}

#else

bool is_followed(const Monitor *, PyFrameObject *frame) { return frame->f_trace_opcodes; }

void unfollow(Monitor *, PyFrameObject *frame) { frame->f_trace_opcodes = 0; }

bool follow(Monitor *, PyFrameObject *frame) {
  frame->f_trace_opcodes = 1;
  return true;
}

void end_requests(Monitor *) {}

#endif

}  // namespace

// The monitor, and native access to frames and objects. This file is the module; the subjects are in the
// headers.
#include "frames.h"

#include "call_as_caller.h"
#include "monitor_type.h"
#include "object_access.h"
#include "plain_values.h"
#include "reference_replacement.h"

namespace {

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
#if EVENTS_BELONG_TO_CODE
    {"use_instruction_tool", use_instruction_tool, METH_VARARGS,
     "(number, set_local_events, event): use this tool of sys.monitoring for events of instructions."},
    {"on_instruction_event", (PyCFunction)(void (*)(void))on_instruction_event, METH_FASTCALL,
     "The tool's callback for them."},
#endif
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

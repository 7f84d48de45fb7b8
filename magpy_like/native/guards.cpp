// Native checks of guards, which run on every call of a compiled function. This file is the module; each
// check has a header of its own.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "tensor_check.h"
#include "watch.h"
#include "torch_state.h"
#include "fetched_attributes.h"
#include "partial_call.h"
#include "shared_memory.h"

namespace {

PyMethodDef module_methods[] = {
    {"attribute", (PyCFunction)(void *)attribute, METH_FASTCALL,
     "(instance, name): return an entry of its dictionary. Raises AttributeError if there is none."},
    {"lacks", (PyCFunction)(void *)lacks, METH_FASTCALL,
     "(instance, names…): True if its dictionary has none of these names."},
    {"is_unusual", is_unusual, METH_NOARGS,
     "True if a mode, a transform, torch.jit.trace or hooks on saved tensors may see this thread's operators,\n"
     "torch.compiler.set_stance forces eager mode, or a profiler records this thread."},
    {"eager_is_forced", eager_is_forced, METH_NOARGS, "True if torch.compiler.set_stance forces eager mode."},
    {"memory_of", (PyCFunction)(void *)memory_of, METH_FASTCALL,
     "(*tensors): for each, the index of the first one in the same memory, and the distance from it in bytes."},
    {"calibrate", tensor_objects::calibrate, METH_VARARGS,
     "(tensor, tensor._cdata): find the layout of tensor objects."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_guards", nullptr, -1, module_methods};

bool init_type(PyTypeObject &t, const char *name, size_t size, newfunc make, destructor dealloc, size_t call,
           PyMethodDef *methods) {
  t.tp_name = name;
  t.tp_basicsize = size;
  t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  t.tp_new = make;
  t.tp_dealloc = dealloc;
  t.tp_call = PyVectorcall_Call;
  t.tp_vectorcall_offset = call;
  t.tp_methods = methods;
  return true;
}

}  // namespace

PyMODINIT_FUNC PyInit__magpy_guards(void) {
  init_type(watch_type, "_magpy_guards.Watch", sizeof(Watch), watch_new, watch_dealloc, offsetof(Watch, call),
        watch_methods);
  watch_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  watch_type.tp_traverse = watch_traverse;
  watch_type.tp_clear = watch_clear;
  init_type(tensor_check_type, "_magpy_guards.TensorCheck", sizeof(TensorCheck), tensor_check_new,
        tensor_check_dealloc, offsetof(TensorCheck, call), tensor_check_methods);
  init_type(state_check_type, "_magpy_guards.StateCheck", sizeof(StateCheck), state_check_new,
            state_check_dealloc, offsetof(StateCheck, call), state_check_methods);
  state_check_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  state_check_type.tp_traverse = state_check_traverse;
  state_check_type.tp_clear = state_check_clear;
  init_type(partial_call_type, "_magpy_guards.PartialCall", sizeof(PartialCall), partial_call_new,
            partial_call_dealloc, offsetof(PartialCall, call), nullptr);
  partial_call_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  partial_call_type.tp_traverse = partial_call_traverse;
  partial_call_type.tp_clear = partial_call_clear;
  if (PyType_Ready(&partial_call_type) < 0 || PyType_Ready(&watch_type) < 0 || PyType_Ready(&tensor_check_type) < 0 ||
      PyType_Ready(&state_check_type) < 0)
    return nullptr;
  PyObject *m = PyModule_Create(&module);
  if (!m) return nullptr;
  class_name = PyUnicode_InternFromString("__class__");
  absent = PyObject_CallFunction((PyObject *)&PyBaseObject_Type, nullptr);
  any_value = PyObject_CallFunction((PyObject *)&PyBaseObject_Type, nullptr);
  slot_names = PyUnicode_InternFromString("__slotnames__");
  if (!init_stance() || !class_name || !slot_names || !absent || PyModule_AddObjectRef(m, "ABSENT", absent) < 0 ||
      !any_value || PyModule_AddObjectRef(m, "ANY_VALUE", any_value) < 0 ||
      PyModule_AddObjectRef(m, "Watch", (PyObject *)&watch_type) < 0 ||
      PyModule_AddObjectRef(m, "TensorCheck", (PyObject *)&tensor_check_type) < 0 ||
      PyModule_AddObjectRef(m, "StateCheck", (PyObject *)&state_check_type) < 0 ||
      PyModule_AddObjectRef(m, "PartialCall", (PyObject *)&partial_call_type) < 0) {
    Py_DECREF(m);
    return nullptr;
  }
  return m;
}

// `StateCheck`: a callable that compares torch's global modes and the classes of tensors.
#pragma once
#include "dynamo_stance.h"
#include "expected_objects.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

// Declared here: their headers include all of ATen.
namespace at::autocast {
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device);
}
namespace torch::jit::tracer {
struct TracingState;
TORCH_API const std::shared_ptr<TracingState> &getTracingState();
}
namespace torch::profiler::impl {
TORCH_API bool profilerEnabled();
}

namespace {

// Grad and inference modes, deterministic algorithms, the dispatch keys enabled or disabled on this
// thread (autocast, functorch and Python modes among them), the default dtype, the number of torch
// function modes (a default device is one), and the dtypes of autocast: a program may enable it
// without naming one.
struct TorchState {
  long modes;
  uint64_t included, excluded;
  int64_t function_modes, casts;
  bool operator==(const TorchState &o) const {
    return modes == o.modes && included == o.included && excluded == o.excluded &&
           function_modes == o.function_modes && casts == o.casts;
  }
};

int64_t autocast_type(c10::DeviceType device) { return (int64_t)at::autocast::get_autocast_dtype(device); }

TorchState read_torch_state() {
  const c10::AutogradState &a = c10::AutogradState::get_tls_state();
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return {a.get_grad_mode() | a.get_fw_grad_mode() << 1 | a.get_inference_mode() << 2 |
              at::globalContext().deterministicAlgorithms() << 3 |
              (long)c10::get_default_dtype_as_scalartype() << 8,
          keys.included_.raw_repr(), keys.excluded_.raw_repr(),
          at::impl::PythonTorchFunctionTLS::stack_len(),
          autocast_type(c10::DeviceType::CPU) | autocast_type(c10::DeviceType::CUDA) << 8};
}

// True if somebody may see the operators of this thread: a mode of torch's functions or operators,
// `torch.jit.trace`, hooks on saved tensors while gradients are recorded, or a transform.
bool may_be_observed() {
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return at::impl::PythonTorchFunctionTLS::stack_len() > 0 || c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
         included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         included.has(c10::DispatchKey::FuncTorchDynamicLayerBackMode) || torch::jit::tracer::getTracingState() ||
         (c10::AutogradState::get_tls_state().get_grad_mode() &&
          !at::SavedTensorDefaultHooks::get_tls_state().stack.empty());
}

PyObject *is_unusual(PyObject *, PyObject *) {
  return PyBool_FromLong(may_be_observed() || is_eager_forced() || torch::profiler::impl::profilerEnabled());
}

// Expected attributes of a class, compared only if the class was modified.
struct ClassNamespace {
  PyObject *entries, *expected;  // owned dictionaries: the class's own, and a copy of its contents
  uint64_t version;
};

// Ignores the cache that `copyreg` stores on a class when one of its instances is copied.
bool is_unchanged(ClassNamespace &n) {
  if (version_of(n.entries) == n.version) return true;
  const uint64_t version = version_of(n.entries);
  int copied = PyDict_Contains(n.entries, slot_names);
  if (PyDict_GET_SIZE(n.entries) - (copied > 0) != PyDict_GET_SIZE(n.expected)) return false;
  Py_ssize_t at = 0;
  PyObject *name, *value;
  while (PyDict_Next(n.expected, &at, &name, &value))
    if (PyDict_GetItemWithError(n.entries, name) != value) {
      PyErr_Clear();
      return false;
    }
  n.version = version;
  return true;
}

struct StateCheck {
  PyObject_HEAD
  TorchState expected;
  std::vector<ClassNamespace> *classes;
  vectorcallfunc call;
};

PyObject *state_check_call(PyObject *self, PyObject *const *, size_t, PyObject *) {
  StateCheck *check = (StateCheck *)self;
  if (!(read_torch_state() == check->expected)) Py_RETURN_FALSE;
  for (ClassNamespace &n : *check->classes)
    if (!is_unchanged(n)) Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

PyObject *state_check_new(PyTypeObject *type, PyObject *args, PyObject *) {
  StateCheck *self = (StateCheck *)type->tp_alloc(type, 0);
  if (!self) return nullptr;
  self->expected = read_torch_state();
  self->classes = new std::vector<ClassNamespace>();
  self->call = state_check_call;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
    PyObject *entries, *expected;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(args, i), "O!O!", &PyDict_Type, &entries, &PyDict_Type,
                          &expected)) {
      Py_DECREF(self);
      return nullptr;
    }
    self->classes->push_back({Py_NewRef(entries), Py_NewRef(expected), 0});
  }
  return (PyObject *)self;
}

PyObject *state_check_modes(PyObject *self, PyObject *) {
  const TorchState &s = ((StateCheck *)self)->expected;
  return Py_BuildValue("lKKLL", s.modes, (unsigned long long)s.included, (unsigned long long)s.excluded,
                       (long long)s.function_modes, (long long)s.casts);
}

int state_check_traverse(PyObject *self, visitproc visit, void *arg) {
  for (ClassNamespace &n : *((StateCheck *)self)->classes) {
    Py_VISIT(n.entries);
    Py_VISIT(n.expected);
  }
  return 0;
}

int state_check_clear(PyObject *self) {
  std::vector<ClassNamespace> classes;
  classes.swap(*((StateCheck *)self)->classes);
  for (ClassNamespace &n : classes) {
    Py_DECREF(n.entries);
    Py_DECREF(n.expected);
  }
  return 0;
}

void state_check_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  state_check_clear(self);
  delete ((StateCheck *)self)->classes;
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef state_check_methods[] = {
    {"modes", state_check_modes, METH_NOARGS, "Return the expected modes, to compare with another check's."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject state_check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

// `PartialCall`: a function with some of its arguments.
#pragma once
#include "expected_objects.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <vector>

namespace {

// A function with some of its positional arguments, which may be a thousand parameters of a model. They
// are passed on without a change of their reference counts.
struct PartialCall {
  PyObject_HEAD
  PyObject *function;
  PyObject *known;  // a tuple with ABSENT in the places of the arguments of a call
  std::vector<Py_ssize_t> *places;
  vectorcallfunc call;
};

PyObject *partial_call(PyObject *self, PyObject *const *args, size_t n, PyObject *names) {
  PartialCall *p = (PartialCall *)self;
  if (!p->function) {
    PyErr_SetString(PyExc_RuntimeError, "the function has been collected");
    return nullptr;
  }
  if (PyVectorcall_NARGS(n) != (Py_ssize_t)p->places->size() || names) {
    PyErr_SetString(PyExc_TypeError, "expected the positional arguments that are not known");
    return nullptr;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(p->known);
  // One place before the arguments belongs to the callee.
  c10::SmallVector<PyObject *, 64> stack(count + 1);
  std::copy_n(((PyTupleObject *)p->known)->ob_item, count, stack.begin() + 1);
  for (size_t i = 0; i < p->places->size(); i++) stack[(*p->places)[i] + 1] = args[i];
  // A finalizer may clear this object while the callee runs.
  PyObject *known = Py_NewRef(p->known), *function = Py_NewRef(p->function);
  PyObject *result =
      PyObject_Vectorcall(function, stack.data() + 1, count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  Py_DECREF(function);
  Py_DECREF(known);
  return result;
}

PyObject *partial_call_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *function, *known;
  if (!PyArg_ParseTuple(args, "OO!", &function, &PyTuple_Type, &known)) return nullptr;
  PartialCall *self = (PartialCall *)type->tp_alloc(type, 0);
  if (!self) return nullptr;
  self->function = Py_NewRef(function);
  self->known = Py_NewRef(known);
  self->places = new std::vector<Py_ssize_t>();
  self->call = partial_call;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(known); i++)
    if (PyTuple_GET_ITEM(known, i) == absent) self->places->push_back(i);
  return (PyObject *)self;
}

int partial_call_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((PartialCall *)self)->function);
  Py_VISIT(((PartialCall *)self)->known);
  return 0;
}

// Members are null from here on: nothing calls an object in a cycle that is collected.
int partial_call_clear(PyObject *self) {
  Py_CLEAR(((PartialCall *)self)->function);
  return 0;
}

void partial_call_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  Py_CLEAR(((PartialCall *)self)->function);
  Py_CLEAR(((PartialCall *)self)->known);
  delete ((PartialCall *)self)->places;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject partial_call_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

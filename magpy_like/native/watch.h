// `Watch`: a callable that checks that the fixed objects of a record are unchanged.
#pragma once
#include "watched_objects.h"

namespace {

PyObject *watch_call(PyObject *self, PyObject *const *, size_t n, PyObject *) {
  if (PyVectorcall_NARGS(n) != 0) {
    PyErr_SetString(PyExc_TypeError, "expected no argument");
    return nullptr;
  }
  const bool unchanged = is_unchanged((Watch *)self);
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(unchanged);
}

void add_word(Watch *w, const void *address, uint64_t expected, WordKind kind, size_t index) {
  w->words->push_back({(const uint64_t *)address, expected});
  w->owners->push_back({kind, index});
  w->sorted = false;
}

void add_instance(Watch *w, PyObject *instance, const void *slot, PyObject *expected, WordKind kind) {
  w->instances->push_back({Py_NewRef(instance), Py_NewRef(expected)});
  add_word(w, slot, (uint64_t)expected, kind, w->instances->size() - 1);
}

WatchedObject *get_or_add_object(Watch *w, WatchKind kind, PyObject *object) {
  w->inline_words->is_current = false;
  PyObject *id = PyLong_FromVoidPtr(object);
  if (!id) return nullptr;
  PyObject *index = PyDict_GetItemWithError(w->index, id);
  if (!index) {
    index = PyLong_FromSize_t(w->objects->size());
    if (!index || PyDict_SetItem(w->index, id, index) < 0) {
      Py_XDECREF(index);
      Py_DECREF(id);
      return nullptr;
    }
    Py_DECREF(index);
    w->objects->push_back({kind, Py_NewRef(object)});
    if (kind == DICT && has_inline_values(object)) w->inline_words->dicts.push_back(w->objects->size() - 1);
    if (kind == DICT)
      add_word(w, version_address(object), 0, DICT_VERSION, w->objects->size() - 1);
    else if (kind != FUNCTION)
      w->others->push_back(w->objects->size() - 1);
    Py_DECREF(id);
    return &w->objects->back();
  }
  Py_DECREF(id);
  return &(*w->objects)[PyLong_AsSize_t(index)];
}

// True for the watched slots of a function. With any other key, a function is a check to call.
bool is_function_slot(PyObject *key) {
  return PyUnicode_Check(key) && (PyUnicode_CompareWithASCIIString(key, "__code__") == 0 ||
                                  PyUnicode_CompareWithASCIIString(key, "__defaults__") == 0 ||
                                  PyUnicode_CompareWithASCIIString(key, "__kwdefaults__") == 0);
}

PyObject *watch_location(PyObject *self, PyObject *args) {
  PyObject *object, *key, *expected;
  int equal;
  if (!PyArg_ParseTuple(args, "OOOp", &object, &key, &expected, &equal)) return nullptr;
  WatchKind kind = PyDict_Check(object)   ? DICT
              : PyType_Check(object) ? TYPE
              : PyList_Check(object) ? LIST
              : PyCell_Check(object) ? CELL
              : PyFunction_Check(object) && is_function_slot(key) ? FUNCTION
                                     : CALLABLE;
  if (kind == CALLABLE && !PyCallable_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "cannot watch this object");
    return nullptr;
  }
  WatchedObject *o = get_or_add_object((Watch *)self, kind, object);
  if (!o) return nullptr;
  if (kind == FUNCTION && equal) {
    PyErr_SetString(PyExc_ValueError, "slots of functions are compared by identity");
    return nullptr;
  }
  if (kind == FUNCTION)
    add_word((Watch *)self, function_slot(object, key), 0, FUNCTION_SLOT, o - ((Watch *)self)->objects->data());
  // Before the ordered keys of a dictionary, which are last.
  o->locations.insert(o->locations.end() - o->ordered_keys,
                   {Py_NewRef(key), expected == any_value ? nullptr : Py_NewRef(expected), equal != 0});
  Py_RETURN_NONE;
}

PyObject *watch_result(PyObject *self, PyObject *args) {
  PyObject *function, *description, *result;
  if (!PyArg_ParseTuple(args, "OOO", &function, &description, &result)) return nullptr;
  Watch *w = (Watch *)self;
  w->objects->push_back({RESULT, Py_NewRef(function)});
  w->objects->back().locations.push_back({Py_NewRef(description), Py_NewRef(result), false});
  w->others->push_back(w->objects->size() - 1);
  Py_RETURN_NONE;
}

PyObject *watch_size(PyObject *self, PyObject *args) {
  PyObject *object, *keys;
  if (!PyArg_ParseTuple(args, "OO", &object, &keys)) return nullptr;
  const bool counted = PyLong_Check(keys);
  if (!(PyDict_Check(object) && (counted || PyList_Check(keys))) && !(PyList_Check(object) && counted)) {
    PyErr_SetString(PyExc_TypeError,
                    "expected a list or dictionary and its length, or a dictionary and its keys");
    return nullptr;
  }
  WatchedObject *o = get_or_add_object((Watch *)self, PyList_Check(object) ? LIST : DICT, object);
  if (!o) return nullptr;
  if (counted) {
    o->length = PyLong_AsSsize_t(keys);
    if (PyErr_Occurred()) return nullptr;
  } else if (!o->ordered_keys) {
    o->length = o->ordered_keys = PyList_GET_SIZE(keys);
    for (Py_ssize_t i = 0; i < o->length; i++)
      o->locations.push_back({Py_NewRef(PyList_GET_ITEM(keys, i)), nullptr, false});
  }
  Py_RETURN_NONE;
}

PyObject *watch_tensor(PyObject *self, PyObject *tensor) {
  if (!is_tensor(tensor)) {
    PyErr_SetString(PyExc_TypeError, "expected a tensor");
    return nullptr;
  }
  Metadata *m = Metadata::of(tensor);
  if (!m) return nullptr;
  ((Watch *)self)->tensors->push_back({Py_NewRef(tensor), Py_TYPE(tensor)});
  ((Watch *)self)->expected->push_back(std::move(*m));
  delete m;
  Py_RETURN_NONE;
}

PyObject *watch_type_of(PyObject *self, PyObject *object) {
  add_instance((Watch *)self, object, &object->ob_type, (PyObject *)Py_TYPE(object), INSTANCE_TYPE);
  Py_RETURN_NONE;
}

PyObject *watch_dict(PyObject *self, PyObject *object) {
  PyObject **dict_slot = _PyObject_GetDictPtr(object);
  if (!dict_slot || !*dict_slot) Py_RETURN_FALSE;
  add_instance((Watch *)self, object, dict_slot, *dict_slot, INSTANCE_DICT);
  Py_RETURN_TRUE;
}

PyObject *watch_why(PyObject *self, PyObject *) {
  Watch *w = (Watch *)self;
  if (is_unchanged(w)) Py_RETURN_NONE;
  if (PyErr_Occurred()) return nullptr;
  return PyUnicode_DecodeUTF8(w->failed->data(), w->failed->size(), "replace");
}

PyObject *watch_counts(PyObject *self, PyObject *) {
  Watch *w = (Watch *)self;
  size_t locations = 0;
  for (const WatchedObject &o : *w->objects) locations += o.locations.size();
  return Py_BuildValue("nnn", w->objects->size(), locations, w->tensors->size());
}

PyObject *watch_entries(PyObject *self, PyObject *) {
  PyObject *entries = PyList_New(0);
  for (const WatchedObject &o : *((Watch *)self)->objects) {
    if (!entries || (o.kind != DICT && o.kind != LIST && o.kind != CELL)) continue;
    for (const Location &p : o.locations) {
      if (!p.expected) continue;
      PyObject *entry = Py_BuildValue("OOOO", o.object, p.key, p.expected, p.equal ? Py_True : Py_False);
      if (!entry || PyList_Append(entries, entry) < 0) Py_CLEAR(entries);
      Py_XDECREF(entry);
      if (!entries) break;
    }
  }
  return entries;
}

PyObject *watch_new(PyTypeObject *type, PyObject *, PyObject *) {
  Watch *w = (Watch *)type->tp_alloc(type, 0);
  if (!w) return nullptr;
  w->objects = new std::vector<WatchedObject>();
  w->tensors = new std::vector<WatchedTensor>();
  w->expected = new std::vector<Metadata>();
  w->words = new std::vector<Word>();
  w->owners = new std::vector<WordOwner>();
  w->instances = new std::vector<WatchedInstance>();
  w->others = new std::vector<size_t>();
  w->inline_words = new InlineWords();
  w->failed = new std::string();
  w->index = PyDict_New();
  w->call = watch_call;
  return (PyObject *)w;
}

int watch_traverse(PyObject *self, visitproc visit, void *arg) {
  Watch *w = (Watch *)self;
  for (WatchedObject &o : *w->objects) {
    Py_VISIT(o.object);
    for (Location &p : o.locations) {
      Py_VISIT(p.key);
      Py_VISIT(p.expected);
    }
  }
  for (WatchedTensor &t : *w->tensors) Py_VISIT(t.tensor);
  for (WatchedInstance &o : *w->instances) {
    Py_VISIT(o.instance);
    Py_VISIT(o.expected);
  }
  Py_VISIT(w->index);
  return 0;
}

int watch_clear(PyObject *self) {
  Watch *w = (Watch *)self;
  std::vector<WatchedObject> objects;
  objects.swap(*w->objects);
  std::vector<WatchedTensor> tensors;
  tensors.swap(*w->tensors);
  std::vector<WatchedInstance> instances;
  instances.swap(*w->instances);
  w->words->clear();
  w->owners->clear();
  w->others->clear();
  *w->inline_words = InlineWords();
  for (WatchedObject &o : objects) {
    Py_DECREF(o.object);
    for (Location &p : o.locations) {
      Py_XDECREF(p.key);
      Py_XDECREF(p.expected);
    }
  }
  for (WatchedTensor &t : tensors) Py_DECREF(t.tensor);
  for (WatchedInstance &o : instances) {
    Py_DECREF(o.instance);
    Py_DECREF(o.expected);
  }
  Py_CLEAR(w->index);
  return 0;
}

void watch_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  watch_clear(self);
  Watch *w = (Watch *)self;
  delete w->objects;
  delete w->tensors;
  delete w->expected;
  delete w->words;
  delete w->owners;
  delete w->instances;
  delete w->others;
  delete w->inline_words;
  delete w->failed;
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef watch_methods[] = {
    {"location", watch_location, METH_VARARGS,
     "(object, key, expected, equal): the expected value at a location of a dictionary, class, list, cell "
     "or function. expected: ABSENT for an empty location, ANY_VALUE for any other. The key of a class may be "
     "(name, class): the attribute that super finds after that class. Any other callable is called and "
     "must return true; key names it."},
    {"result", watch_result, METH_VARARGS,
     "(function, description, result): a call without arguments returns the same object, or an equal one "
     "of the same type."},
    {"size", watch_size, METH_VARARGS, "(list or dict, length) or (dict, keys in order)"},
    {"tensor", watch_tensor, METH_O, "A tensor whose metadata must not change."},
    {"type", watch_type_of, METH_O, "An object whose class must not change."},
    {"instance_dict", watch_dict, METH_O,
     "An object whose attribute dictionary must not be replaced; False if it has none."},
    {"why", watch_why, METH_NOARGS, "Return the first change in words, or None."},
    {"entries", watch_entries, METH_NOARGS,
     "[(holder, key, expected, equal)…] of the locations in dictionaries, lists and cells. expected: ABSENT "
     "for an empty location. Those that may hold any value are left out. The key of a cell is None."},
    {"counts", watch_counts, METH_NOARGS, "(objects, locations, tensors) watched."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject watch_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

// Keys and members of containers with the hashes that are stored beside them.
//
// A key may compute its hash in Python, with effects: looking at a container, and making another one
// of the same keys, must not ask for it again.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace {

// The entries of CPython's linked list behind an `OrderedDict`, whose first one is the first field
// behind those of a dictionary. Going through it by iterating asks each key for its hash.
struct OrderedEntry {
  PyObject *key;
  Py_hash_t hash;
  OrderedEntry *next, *previous;
};

struct OrderedDict {
  PyDictObject dict;
  OrderedEntry *first;
};

PyObject *ordered_keys(PyObject *, PyObject *mapping) {
  if (!PyODict_Check(mapping)) {
    PyErr_SetString(PyExc_TypeError, "expected an OrderedDict");
    return nullptr;
  }
  PyObject *keys = PyList_New(0);
  for (OrderedEntry *e = ((OrderedDict *)mapping)->first; keys && e; e = e->next)
    if (PyList_Append(keys, e->key) < 0) Py_CLEAR(keys);
  return keys;
}

PyObject *stored_hashes(PyObject *, PyObject *container) {
  bool mapping = PyDict_Check(container);
  if (!mapping && !PyAnySet_Check(container)) {
    PyErr_SetString(PyExc_TypeError, "expected a dictionary or a set");
    return nullptr;
  }
  PyObject *found = PyList_New(0), *key, *value;
  Py_ssize_t at = 0;
  Py_hash_t hash;
  while (found && (mapping ? _PyDict_Next(container, &at, &key, &value, &hash)
                           : _PySet_NextEntry(container, &at, &key, &hash))) {
    PyObject *pair = Py_BuildValue("On", key, (Py_ssize_t)hash);
    if (!pair || PyList_Append(found, pair) < 0) Py_CLEAR(found);
    Py_XDECREF(pair);
  }
  return found;
}

PyObject *dict_of(PyObject *, PyObject *args) {
  PyObject *keys, *hashes, *values;
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &keys, &PyTuple_Type, &hashes, &PyTuple_Type,
                        &values))
    return nullptr;
  Py_ssize_t count = PyTuple_GET_SIZE(keys);
  if (PyTuple_GET_SIZE(hashes) != count || PyTuple_GET_SIZE(values) != count) {
    PyErr_SetString(PyExc_ValueError, "expected as many hashes and values as keys");
    return nullptr;
  }
  PyObject *made = PyDict_New();
  for (Py_ssize_t i = 0; made && i < count; i++) {
    Py_ssize_t hash = PyLong_AsSsize_t(PyTuple_GET_ITEM(hashes, i));
    if (PyErr_Occurred() || _PyDict_SetItem_KnownHash(made, PyTuple_GET_ITEM(keys, i),
                                                      PyTuple_GET_ITEM(values, i), hash) < 0)
      Py_CLEAR(made);
  }
  return made;
}

PyMethodDef module_methods[] = {
    {"ordered_keys", ordered_keys, METH_O, "The keys of an OrderedDict in its order."},
    {"stored_hashes", stored_hashes, METH_O, "(key, hash) for each entry of a dictionary or set."},
    {"dict_of", dict_of, METH_VARARGS, "(keys, hashes, values): a dictionary of different keys."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_keys", nullptr, -1, module_methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_keys(void) { return PyModule_Create(&module); }

// Keys and members of containers with their stored hashes.
//
// A key may compute its hash in Python, with effects. Reading a container, and creating another one
// with the same keys, must not compute it again.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX >= 0x030D0000
#define Py_BUILD_CORE 1
#include <internal/pycore_dict.h>
#include <internal/pycore_setobject.h>
#endif

namespace {

// Advances to the next entry of a dictionary, and to its stored hash. The interpreter's own function is
// not exported from CPython 3.13 on.
bool next_entry(PyObject *dict, Py_ssize_t *position, PyObject **key, PyObject **value, Py_hash_t *hash) {
#if PY_VERSION_HEX >= 0x030D0000
  if (!PyDict_Next(dict, position, key, value)) return false;
  // A table with no other keys than text has no hashes: each text has its own.
  *hash = PyUnicode_CheckExact(*key)
              ? PyObject_Hash(*key)
              : DK_ENTRIES(((PyDictObject *)dict)->ma_keys)[*position - 1].me_hash;
  return true;
#else
  return _PyDict_Next(dict, position, key, value, hash);
#endif
}

// Layout of CPython's linked list of an `OrderedDict`: the pointer to the first entry follows the
// fields of a dictionary. Iteration in Python would hash each key.
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
  Py_ssize_t position = 0;
  Py_hash_t hash;
  while (found && (mapping ? next_entry(container, &position, &key, &value, &hash)
                           : _PySet_NextEntry(container, &position, &key, &hash))) {
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
  PyObject *result = PyDict_New();
  for (Py_ssize_t i = 0; result && i < count; i++) {
    Py_ssize_t hash = PyLong_AsSsize_t(PyTuple_GET_ITEM(hashes, i));
    if (PyErr_Occurred() || _PyDict_SetItem_KnownHash(result, PyTuple_GET_ITEM(keys, i),
                                                      PyTuple_GET_ITEM(values, i), hash) < 0)
      Py_CLEAR(result);
  }
  return result;
}

PyMethodDef module_methods[] = {
    {"ordered_keys", ordered_keys, METH_O, "Return the keys of an OrderedDict in its order."},
    {"stored_hashes", stored_hashes, METH_O, "Return (key, hash) for each entry of a dictionary or set."},
    {"dict_of", dict_of, METH_VARARGS, "(keys, hashes, values): create a dictionary; keys must be distinct."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_keys", nullptr, -1, module_methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_keys(void) { return PyModule_Create(&module); }

// The values of attributes that an object holds itself.
//
// From CPython 3.13 on, the dictionary of an object may have no values of its own: both use the memory in
// the object. Then a store to an attribute changes neither the version of the dictionary nor does it
// notify its watchers, so the values themselves are compared.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX >= 0x030D0000
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <internal/pycore_dict.h>
#endif

#include <vector>

namespace {

#if PY_VERSION_HEX >= 0x030D0000

// True if a dictionary uses the memory of its object: until a dictionary of its own replaces it, or the
// object dies.
bool has_inline_values(PyObject *dict) {
  const PyDictValues *values = ((PyDictObject *)dict)->ma_values;
  return values && values->embedded;
}

// Where the values of known keys are. Its keys are those of a class: they are text, and only grow.
struct InlineSlots {
  Py_ssize_t known = -1;   // the number of keys of the class when the slots were looked up
  std::vector<int> slots;  // -1: no object of the class has the key

  template <typename Locations>
  void update(PyObject *dict, const Locations &locations) {
    PyDictKeysObject *keys = ((PyDictObject *)dict)->ma_keys;
    if (known == keys->dk_nentries && slots.size() == locations.size()) return;
    known = keys->dk_nentries;
    slots.assign(locations.size(), -1);
    for (size_t i = 0; i < locations.size(); i++)
      for (Py_ssize_t at = 0; at < known && slots[i] < 0; at++)
        if (is_same_text(DK_UNICODE_ENTRIES(keys)[at].me_key, locations[i].key)) slots[i] = (int)at;
  }

  static bool is_same_text(PyObject *one, PyObject *other) {
    return one == other ||
           (one && PyUnicode_CheckExact(other) && PyUnicode_Compare(one, other) == 0);
  }

  // The memory of a value; null if no object of the class has the key.
  PyObject *const *address(PyObject *dict, size_t i) const {
    return slots[i] < 0 ? nullptr : &((PyDictObject *)dict)->ma_values->values[slots[i]];
  }

  PyObject *value(PyObject *dict, size_t i) const { return slots[i] < 0 ? nullptr : *address(dict, i); }
};

// The address of the pointer to a dictionary's values: it changes when they leave the object.
const void *values_address(PyObject *dict) { return &((PyDictObject *)dict)->ma_values; }

// The address of the number of keys that objects of the class have had.
const void *key_count_address(PyObject *dict) { return &((PyDictObject *)dict)->ma_keys->dk_nentries; }

#else

bool has_inline_values(PyObject *) { return false; }

struct InlineSlots {
  template <typename Locations>
  void update(PyObject *, const Locations &) {}
  PyObject *const *address(PyObject *, size_t) const { return nullptr; }
  PyObject *value(PyObject *, size_t) const { return nullptr; }
};

const void *values_address(PyObject *) { return nullptr; }
const void *key_count_address(PyObject *) { return nullptr; }

#endif

}  // namespace

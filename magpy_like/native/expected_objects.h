// Objects that stand for values in guards, and the versions of dictionaries.
#pragma once
#include <Python.h>

#include <cstdint>

namespace {

PyObject *absent;           // expected value of a location that must be empty
PyObject *any_value;        // expected value of a location that must not be empty
PyObject *class_name;       // "__class__"
PyObject *slot_names;       // "__slotnames__"

// The tag of a dictionary that each modification changes.
const uint64_t *version_address(PyObject *dict) {
#if PY_VERSION_HEX >= 0x030C0000
  _Py_COMP_DIAG_PUSH
  _Py_COMP_DIAG_IGNORE_DEPR_DECLS
  return &((PyDictObject *)dict)->ma_version_tag;
  _Py_COMP_DIAG_POP
#else
  return &((PyDictObject *)dict)->ma_version_tag;
#endif
}

uint64_t version_of(PyObject *dict) { return *version_address(dict); }

}  // namespace

// The objects that a `Watch` compares, and the comparisons.
//
// An unmodified dictionary or class costs one comparison of versions; only the locations of modified ones
// are read again, and those of dictionaries whose version does not tell (inline_values.h).
#pragma once
#include "expected_objects.h"
#include "inline_values.h"
#include "tensor_metadata.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace {

// A location in a watched object and its expected value.
struct Location {
  PyObject *key;       // owned; None if there is only one location, and for the MRO of a type
  PyObject *expected;  // owned; `absent`: must be empty; null: must not be empty
  bool equal;          // accepts an equal plain value
};

enum WatchKind { DICT, TYPE, LIST, CELL, FUNCTION, CALLABLE, RESULT };

struct WatchedObject {
  WatchKind kind;
  PyObject *object;  // owned
  uint64_t version = 0;         // of a type, when its locations were last checked; 0: never
  Py_ssize_t length = -1;       // of a list or dictionary, -1: any
  Py_ssize_t ordered_keys = 0;  // of a dictionary: the last locations are all of its keys in order
  std::vector<Location> locations;
  InlineSlots inline_slots;     // of a dictionary
};

// A word of memory that differs from what is expected if something was modified. It lies in an object
// that the watch owns, so it can be read at any time.
struct Word {
  const uint64_t *address;
  uint64_t expected;
};
static_assert(sizeof(void *) == sizeof(uint64_t), "a pointer is one word");

enum WordKind { DICT_VERSION, FUNCTION_SLOT, INSTANCE_TYPE, INSTANCE_DICT };

// What a word belongs to: the index of a watched dictionary or function, or of an instance.
struct WordOwner {
  WordKind kind;
  size_t index;
};

// An instance whose class, or whose attribute dictionary, must not be replaced.
struct WatchedInstance {
  PyObject *instance;  // owned
  PyObject *expected;  // owned: its class or its dictionary
};

// The dictionaries whose version does not tell, and their values as words.
//
// The values lie in objects that the watch does not own: they may be read while the dictionaries use
// them, which `places` tells.
struct InlineWords {
  std::vector<size_t> dicts;      // indices of the dictionaries
  std::vector<Word> places;       // of each dictionary: where its values are
  std::vector<Word> values;       // expected values, and numbers of keys
  std::vector<size_t> owners;     // of the values: indices of the dictionaries
  std::vector<size_t> not_words;  // dictionaries that no words describe
  bool is_current = false;        // whether the words are those of the dictionaries
};

// Most of what a record watches are unmodified dictionaries, instances and tensors. Each dictionary and
// instance costs the comparison of one word, in the order of addresses.
struct Watch {
  PyObject_HEAD
  std::vector<Word> *words;
  std::vector<WordOwner> *owners;  // of the words
  std::vector<WatchedInstance> *instances;
  std::vector<WatchedObject> *objects;
  std::vector<size_t> *others;  // indices of the objects without a word
  InlineWords *inline_words;
  std::vector<WatchedTensor> *tensors;
  std::vector<Metadata> *expected;  // of the tensors
  PyObject *index;  // id of a watched object -> its index in `objects`
  std::string *failed;
  bool sorted;
  vectorcallfunc call;
};

// A value that stays alive where a comparison runs code that removes it from its dictionary.
struct Held {
  PyObject *value;
  explicit Held(PyObject *value) : value(value) { Py_XINCREF(value); }
  ~Held() { Py_XDECREF(value); }
};

// Comparisons may run code of the program, and the handler of a signal: if either raises, they return
// false with the exception set, for the caller of the watch.

bool holds_expected(const Location &p, PyObject *found) {
  if (!found) return p.expected == absent;
  if (!p.expected || found == p.expected) return true;
  if (!p.equal || Py_TYPE(found) != Py_TYPE(p.expected)) return false;
  int same = PyObject_RichCompareBool(found, p.expected, Py_EQ);
  if (same == 1 && PyFloat_CheckExact(found))
    return std::signbit(PyFloat_AS_DOUBLE(found)) == std::signbit(PyFloat_AS_DOUBLE(p.expected));
  if (same == 1 && !PyLong_Check(found) && !PyUnicode_CheckExact(found) && !PyBytes_CheckExact(found)) {
    // 0j and -0j, or two empty ranges, are equal but distinguishable.
    PyObject *a = PyObject_Repr(found), *b = PyObject_Repr(p.expected);
    same = a && b ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    Py_XDECREF(a);
    Py_XDECREF(b);
  }
  return same == 1;
}

// True if no code of the program writes an object's `repr`: native code writes it, and without those of
// other objects.
bool has_native_repr(PyObject *object) {
  PyTypeObject *t = Py_TYPE(object);
  if (PyFunction_Check(object) || PyCFunction_Check(object) || t == &PyType_Type) return true;
  return !PyType_HasFeature(t, Py_TPFLAGS_HEAPTYPE) && !PyType_IS_GC(t);
}

std::string short_repr(PyObject *object) {
  if (object && !has_native_repr(object)) {
    const char *name = Py_TYPE(object)->tp_name, *dot = std::strrchr(name, '.');
    return std::string("a ") + (dot ? dot + 1 : name);
  }
  PyObject *repr = object ? PyObject_Repr(object) : nullptr;
  const char *s = repr ? PyUnicode_AsUTF8(repr) : nullptr;
  std::string out = s ? s : "?";
  Py_XDECREF(repr);
  return out.size() > 80 ? out.substr(0, 80) + "…" : out;
}

// Names the changed location of an object, as the start of a sentence.
std::string describe_location(const WatchedObject &o, const Location *p) {
  const std::string key = short_repr(p ? p->key : nullptr);
  switch (o.kind) {
    case DICT:
      return p ? "entry " + key : "the keys of a dictionary";
    case TYPE:
      return std::string(((PyTypeObject *)o.object)->tp_name) + "." +
             (p->key == Py_None ? "__mro__" : key);
    case LIST:
      return p ? "item " + key + " of a list" : "the length of a list";
    case CELL:
      return "a closure variable";
    case FUNCTION:
      return short_repr(o.object) + "." + (p ? key : "");
    case CALLABLE:
    case RESULT:
      return key;
  }
  return "";
}

// Stores the text of `Watch.why` and returns false. `p` is null for keys or length.
bool record_change(Watch *w, const WatchedObject &o, const Location *p, PyObject *found) {
  if (PyErr_Occurred()) return false;
  *w->failed = describe_location(o, p) + " changed" + (p && found ? ": it is " + short_repr(found) : "");
  return false;
}

// Lookup of `super`: key is (name, class); searches the classes after that class in the MRO of `type`.
PyObject *lookup_after_class(PyTypeObject *type, PyObject *key) {
  PyObject *name = PyTuple_GET_ITEM(key, 0), *after = PyTuple_GET_ITEM(key, 1);
  PyObject *mro = type->tp_mro;
  bool behind = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
    PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
    if (behind) {
#if PY_VERSION_HEX >= 0x030C0000
      PyObject *names = PyType_GetDict(base);
      PyObject *found = names ? PyDict_GetItemWithError(names, name) : nullptr;
      Py_XDECREF(names);
#else
      PyObject *found = PyDict_GetItemWithError(base->tp_dict, name);
#endif
      if (found || PyErr_Occurred()) return found;
    }
    behind = behind || (PyObject *)base == after;
  }
  return nullptr;
}

// True if keys are the same if they are of one type and equal. 0.0 and -0.0 are not, and a comparison
// of others may run code that changes the dictionary.
bool is_simple_key(PyObject *key) {
  return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBytes_CheckExact(key);
}

bool has_keys_in_order(const WatchedObject &o) {
  Py_ssize_t position = 0, i = o.locations.size() - o.ordered_keys;
  PyObject *key, *value;
  while (PyDict_Next(o.object, &position, &key, &value)) {
    PyObject *expected = o.locations[i++].key;
    if (key == expected) continue;
    if (!is_simple_key(key) || Py_TYPE(key) != Py_TYPE(expected)) return false;
    if (PyObject_RichCompareBool(key, expected, Py_EQ) != 1) return false;
  }
  return true;
}

bool check_dict(Watch *w, const WatchedObject &o) {
  if (o.length >= 0 && PyDict_GET_SIZE(o.object) != o.length) return record_change(w, o, nullptr, nullptr);
  if (o.ordered_keys && !has_keys_in_order(o)) return record_change(w, o, nullptr, nullptr);
  for (const Location &p : o.locations) {
    PyObject *found = PyDict_GetItemWithError(o.object, p.key);
    if (!found && PyErr_Occurred()) return false;
    const Held held(found);
    if (!holds_expected(p, found)) return record_change(w, o, &p, found);
  }
  return true;
}

// The version tag of a class, which a look-up gives it and a change takes; 0 for none.
uint64_t class_version(const PyTypeObject *t) {
#if PY_VERSION_HEX < 0x030D0000
  if (!PyType_HasFeature((PyTypeObject *)t, Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return t->tp_version_tag;
}

bool check_type(Watch *w, WatchedObject &o) {
  PyTypeObject *t = (PyTypeObject *)o.object;
  _PyType_Lookup(t, class_name);
  const uint64_t version = class_version(t);
  for (const Location &p : o.locations) {
    PyObject *found = PyTuple_Check(p.key) ? lookup_after_class(t, p.key)
                      : p.key == Py_None   ? t->tp_mro
                                           : _PyType_Lookup(t, p.key);
    if (!found && PyErr_Occurred()) return false;
    if (!holds_expected(p, found)) return record_change(w, o, &p, found);
  }
  o.version = version;  // of before: comparisons may run code that modifies the class
  return true;
}

bool check_list(Watch *w, WatchedObject &o) {
  Py_ssize_t n = PyList_GET_SIZE(o.object);
  if (o.length >= 0 && n != o.length) return record_change(w, o, nullptr, nullptr);
  for (const Location &p : o.locations) {
    Py_ssize_t i = PyLong_AsSsize_t(p.key);
    if (i < 0) i += n;  // counted from the end
    PyObject *found = 0 <= i && i < n ? PyList_GET_ITEM(o.object, i) : nullptr;
    if (!holds_expected(p, found)) return record_change(w, o, &p, found);
  }
  return true;
}

bool check_cell(Watch *w, WatchedObject &o) {
  PyObject *found = PyCell_GET(o.object);
  return holds_expected(o.locations[0], found) || record_change(w, o, &o.locations[0], found);
}

PyObject **function_slot(PyObject *function, PyObject *name) {
  PyFunctionObject *f = (PyFunctionObject *)function;
  const bool code = PyUnicode_CompareWithASCIIString(name, "__code__") == 0;
  const bool keyword = PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0;
  return code ? &f->func_code : keyword ? &f->func_kwdefaults : &f->func_defaults;
}

bool check_function(Watch *w, const WatchedObject &o) {
  for (const Location &p : o.locations) {
    PyObject *found = *function_slot(o.object, p.key);
    if (!found) found = Py_None;
    if (!holds_expected(p, found)) return record_change(w, o, &p, found);
  }
  return true;
}

bool check_callable(Watch *w, WatchedObject &o) {
  PyObject *result = PyObject_CallNoArgs(o.object);
  bool is_true = result && PyObject_IsTrue(result) == 1;
  Py_XDECREF(result);
  return is_true || record_change(w, o, &o.locations[0], nullptr);
}

// Compares the result of a call: the same object, or an equal one of the same type.
bool check_result(Watch *w, WatchedObject &o) {
  const Location &p = o.locations[0];
  PyObject *found = PyObject_CallNoArgs(o.object);
  bool same = found == p.expected;
  if (found && !same && Py_TYPE(found) == Py_TYPE(p.expected))
    same = PyObject_RichCompareBool(found, p.expected, Py_EQ) == 1;
  Py_XDECREF(found);
  return same || record_change(w, o, &p, nullptr);
}

// Reads all locations of an object again.
bool check_locations(Watch *w, WatchedObject &o) {
  switch (o.kind) {
    case DICT:
      return check_dict(w, o);
    case TYPE:
      return check_type(w, o);
    case LIST:
      return check_list(w, o);
    case CELL:
      return check_cell(w, o);
    case FUNCTION:
      return check_function(w, o);
    case CALLABLE:
      return check_callable(w, o);
    case RESULT:
      return check_result(w, o);
  }
  return false;
}

void sort_words(Watch *w) {
  std::vector<size_t> order(w->words->size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return (*w->words)[a].address < (*w->words)[b].address; });
  std::vector<Word> words;
  std::vector<WordOwner> owners;
  for (size_t i : order) {
    words.push_back((*w->words)[i]);
    owners.push_back((*w->owners)[i]);
  }
  w->words->swap(words);
  w->owners->swap(owners);
  w->sorted = true;
}

// Finds out what the change of a word means. Called for changed words only.
bool check_changed_word(Watch *w, size_t i) {
  const WordOwner owner = (*w->owners)[i];
  if (owner.kind == DICT_VERSION || owner.kind == FUNCTION_SLOT) {
    // The word of before: comparisons may run code that modifies the object.
    const uint64_t found = *(*w->words)[i].address;
    if (!check_locations(w, (*w->objects)[owner.index])) return false;
    (*w->words)[i].expected = found;
    return true;
  }
  const WatchedInstance &o = (*w->instances)[owner.index];
  *w->failed = owner.kind == INSTANCE_TYPE
                   ? std::string("the class of a ") + ((PyTypeObject *)o.expected)->tp_name + " changed"
                   : std::string("the __dict__ of a ") + Py_TYPE(o.instance)->tp_name + " changed";
  return false;
}

// Compares the words in groups without a branch, so that their loads overlap.
bool check_words(Watch *w) {
  constexpr size_t GROUP = 16;
  const size_t count = w->words->size();
  for (size_t start = 0; start < count; start += GROUP) {
    const Word *words = w->words->data();
    const size_t end = std::min(start + GROUP, count);
    uint64_t difference = 0;
#pragma GCC unroll 16
    for (size_t i = start; i < end; i++) difference |= *words[i].address ^ words[i].expected;
    for (size_t i = start; difference && i < end; i++)
      if (*(*w->words)[i].address != (*w->words)[i].expected && !check_changed_word(w, i)) return false;
  }
  return true;
}

// Compares the values of a dictionary with those in its object.
bool check_inline_values(Watch *w, WatchedObject &o) {
  if (o.length >= 0 || o.ordered_keys || !has_inline_values(o.object)) return check_dict(w, o);
  o.inline_slots.update(o.object, o.locations);
  for (size_t i = 0; i < o.locations.size(); i++) {
    PyObject *found = o.inline_slots.value(o.object, i);
    const Location &p = o.locations[i];
    if (found == p.expected && found) continue;
    const Held held(found);
    if (!holds_expected(p, found)) return record_change(w, o, &p, found);
    if (!has_inline_values(o.object)) return check_dict(w, o);
    o.inline_slots.update(o.object, o.locations);
  }
  return true;
}

// Appends the words of a dictionary; false if words cannot express what is expected.
bool append_inline_words(InlineWords &words, WatchedObject &o, size_t index) {
  if (o.length >= 0 || o.ordered_keys) return false;
  o.inline_slots.update(o.object, o.locations);
  bool needs_keys = false;
  for (size_t i = 0; i < o.locations.size(); i++) {
    const Location &p = o.locations[i];
    if (!p.expected) return false;  // any value
    PyObject *const *address = o.inline_slots.address(o.object, i);
    if (!address) {
      needs_keys = true;
      continue;
    }
    const uint64_t expected = p.expected == absent ? 0 : (uint64_t)p.expected;
    words.values.push_back({(const uint64_t *)address, expected});
    words.owners.push_back(index);
  }
  if (needs_keys) {
    const uint64_t *address = (const uint64_t *)key_count_address(o.object);
    words.values.push_back({address, *address});
    words.owners.push_back(index);
  }
  return true;
}

// Dictionaries that have values of their own by now are removed.
void collect_inline_words(Watch *w) {
  InlineWords found;
  for (size_t index : w->inline_words->dicts) {
    WatchedObject &o = (*w->objects)[index];
    if (!has_inline_values(o.object)) continue;
    found.dicts.push_back(index);
    const uint64_t *place = (const uint64_t *)values_address(o.object);
    found.places.push_back({place, *place});
    const size_t count = found.values.size();
    if (append_inline_words(found, o, index)) continue;
    found.values.resize(count);
    found.owners.resize(count);
    found.not_words.push_back(index);
  }
  found.is_current = true;
  *w->inline_words = std::move(found);
}

// Compares without a branch, so that the loads overlap.
bool are_as_expected(const std::vector<Word> &words) {
  uint64_t difference = 0;
#pragma GCC unroll 16
  for (size_t i = 0; i < words.size(); i++) difference |= *words[i].address ^ words[i].expected;
  return !difference;
}

// A copy of the indices: code that a comparison runs may call the watch, which collects words anew.
bool check_inline_values_of(Watch *w, const std::vector<size_t> indices) {
  for (size_t index : indices)
    if (!check_inline_values(w, (*w->objects)[index])) return false;
  return true;
}

bool check_inline_dicts(Watch *w) {
  InlineWords &words = *w->inline_words;
  if (!words.is_current || !are_as_expected(words.places)) {
    // A dictionary that has just left its object is checked once more: its version is that of before.
    if (!check_inline_values_of(w, words.dicts)) return false;
    collect_inline_words(w);
    return true;
  }
  if (!words.not_words.empty() && !check_inline_values_of(w, words.not_words)) return false;
  // Comparisons may have run code that ends an object.
  if (!words.not_words.empty() && !are_as_expected(words.places)) return check_inline_dicts(w);
  if (are_as_expected(words.values)) return true;
  size_t checked = SIZE_MAX;
  for (size_t i = 0; i < words.values.size(); i++) {
    const Word word = words.values[i];
    if (*word.address == word.expected || words.owners[i] == checked) continue;
    checked = words.owners[i];
    if (!check_inline_values(w, (*w->objects)[checked])) return false;
    if (!words.is_current || !are_as_expected(words.places)) return check_inline_dicts(w);
    // With a new key, a location that had no memory may have some: the words are collected again.
    if (word.address == key_count_address((*w->objects)[checked].object)) words.is_current = false;
  }
  return true;
}

bool is_unmodified(const WatchedObject &o) {
  return o.kind == TYPE && o.version && class_version((PyTypeObject *)o.object) == o.version;
}

bool check_tensor(Watch *w, size_t i) {
  WatchedTensor &t = (*w->tensors)[i];
  t.impl = nullptr;
  const char *property = (*w->expected)[i].difference(t.tensor);
  if (property) {
    *w->failed = std::string("the ") + property + " of a parameter, buffer or known tensor changed";
    return false;
  }
  t.note_block();
  return true;
}

// Tensors are scattered in memory: later ones are prefetched.
constexpr size_t PREFETCH_DISTANCE = 8;

bool check_tensors(Watch *w) {
  const size_t count = w->tensors->size();
  for (size_t i = 0; i < count; i++) {
    if (i + PREFETCH_DISTANCE < count) {
      const WatchedTensor &next = (*w->tensors)[i + PREFETCH_DISTANCE];
      __builtin_prefetch(next.tensor);
      __builtin_prefetch(next.impl);
      __builtin_prefetch(next.found_block());
      __builtin_prefetch(next.found_block() + BLOCK_WORDS - 1);
    }
    if (!(*w->tensors)[i].is_as_found() && !check_tensor(w, i)) return false;
  }
  return true;
}

// Returns false, too, if a comparison has raised an exception, which is set.
bool is_unchanged(Watch *w) {
  try {
    if (!w->sorted) sort_words(w);
    if (!check_words(w) || !check_inline_dicts(w)) return false;
    for (const size_t i : *w->others) {
      WatchedObject &o = (*w->objects)[i];
      if (!is_unmodified(o) && !check_locations(w, o)) return false;
    }
    return check_tensors(w);
  } catch (const std::exception &error) {  // torch's errors
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return false;
  }
}

}  // namespace

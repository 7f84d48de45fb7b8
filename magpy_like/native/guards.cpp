// Native checks of guards, which run on every call of a compiled function.
//
// `Watch` checks that the fixed objects of a record are unchanged. An unmodified dictionary or class
// costs one comparison of versions; only the locations of modified ones are read again. `TensorCheck`
// compares a tensor's metadata, `StateCheck` torch's global modes and the classes of tensors.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/SmallVector.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

// Declared here: their headers include all of ATen.
namespace at::autocast {
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device);
}
namespace torch::jit::tracer {
struct TracingState;
TORCH_API const std::shared_ptr<TracingState> &getTracingState();
}

namespace {

PyObject *absent;           // expected value of a location that must be empty
PyObject *class_name;       // "__class__"
PyObject *slot_names;       // "__slotnames__"
PyTypeObject *tensor_type;  // torch._C.TensorBase
Py_ssize_t impl_offset;     // offset of the TensorImpl pointer in a tensor object

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

// --- tensors -------------------------------------------------------------------------------------

c10::TensorImpl *tensor_impl(PyObject *tensor) {
  return *(c10::TensorImpl **)((char *)tensor + impl_offset);
}

bool is_tensor(PyObject *value) { return PyType_IsSubtype(Py_TYPE(value), tensor_type); }

// Of a tensor with dynamic dimensions: bounds of each size, and the dimension whose size times stride
// is the stride (-1: the stride is fixed).
struct DynamicDimensions {
  std::vector<int64_t> minimum, maximum, stride_source;
};

// Expected metadata of a tensor.
struct Metadata {
  PyTypeObject *type;
  uint64_t keys;
  c10::ScalarType dtype;
  c10::Device device{c10::kCPU};
  bool requires_grad, strided;
  size_t rank;
  c10::SmallVector<int64_t, 8> layout;  // sizes, then strides
  std::unique_ptr<DynamicDimensions> dynamic;

  explicit Metadata(PyObject *tensor) : type(Py_TYPE(tensor)) {
    c10::TensorImpl *t = tensor_impl(tensor);
    keys = t->key_set().raw_repr();
    dtype = c10::typeMetaToScalarType(t->dtype());
    device = t->device();
    requires_grad = t->requires_grad();
    strided = t->layout() == c10::kStrided;
    const c10::IntArrayRef n = t->sizes();  // throws for a nested tensor, which has none
    rank = n.size();
    layout.append(n.begin(), n.end());
    if (strided) layout.append(t->strides().begin(), t->strides().end());
  }

  c10::IntArrayRef sizes() const { return {layout.data(), rank}; }
  c10::IntArrayRef strides() const { return {layout.data() + rank, layout.size() - rank}; }

  // Catches exceptions of torch: the interpreter is written in C.
  static Metadata *of(PyObject *tensor) {
    try {
      return new Metadata(tensor);
    } catch (const std::exception &) {
      PyErr_SetString(PyExc_TypeError, "a tensor without sizes");
      return nullptr;
    }
  }

  // Returns the name of the first property that differs, or null.
  const char *difference(PyObject *tensor) const noexcept {
    try {
      return find_difference(tensor);
    } catch (const std::exception &) {
      return "kind";
    }
  }

  const char *find_difference(PyObject *tensor) const {
    if (Py_TYPE(tensor) != type) return "type";
    c10::TensorImpl *t = tensor_impl(tensor);
    if (t->dtype() != c10::scalarTypeToTypeMeta(dtype)) return "dtype";
    if (t->device() != device) return "device";
    if (t->requires_grad() != requires_grad) return "requires_grad";
    if (t->key_set().raw_repr() != keys) return "layout or dispatch keys";
    if (dynamic && strided) return find_dynamic_difference(t->sizes(), t->strides());
    if (t->sizes() != sizes()) return "shape";
    if (strided && t->strides() != strides()) return "strides";
    return nullptr;
  }

  const char *find_dynamic_difference(c10::IntArrayRef n, c10::IntArrayRef s) const {
    if (n.size() != rank) return "number of dimensions";
    const DynamicDimensions &d = *dynamic;
    for (size_t i = 0; i < rank; i++) {
      if (n[i] < d.minimum[i] || n[i] > d.maximum[i]) return "shape";
      const int64_t from = d.stride_source[i];
      if (s[i] != (from < 0 ? strides()[i] : n[from] * s[from])) return "strides";
    }
    return nullptr;
  }
};

// Names the members of a TensorImpl from its sizes to its dispatch keys, which lie in one block and
// hold all metadata but `requires_grad`.
struct ImplLayout : c10::TensorImpl {
  static constexpr size_t begin() { return offsetof(ImplLayout, sizes_and_strides_); }
  static constexpr size_t end() { return offsetof(ImplLayout, key_set_) + sizeof(c10::DispatchKeySet); }
};
constexpr size_t BLOCK_WORDS = (ImplLayout::end() - ImplLayout::begin()) / sizeof(uint64_t);
static_assert(BLOCK_WORDS * sizeof(uint64_t) == ImplLayout::end() - ImplLayout::begin());

// A tensor whose metadata must not change. Metadata is compared as a block of memory; only if the block
// has changed, it is compared in detail.
struct WatchedTensor {
  PyObject *tensor;  // owned
  PyTypeObject *type;
  c10::TensorImpl *impl = nullptr;  // null: the block says nothing
  uint64_t block[BLOCK_WORDS];
  bool requires_grad;

  const uint64_t *found_block() const { return (const uint64_t *)((const char *)impl + ImplLayout::begin()); }

  bool has_same_block() const {
    const uint64_t *found = found_block();
    uint64_t difference = 0;
#pragma GCC unroll 32
    for (size_t i = 0; i < BLOCK_WORDS; i++) difference |= found[i] ^ block[i];
    return !difference;
  }

  bool is_as_found() const {
    return impl && tensor_impl(tensor) == impl && Py_TYPE(tensor) == type && has_same_block() &&
           impl->requires_grad() == requires_grad;
  }

  // Copies the block, if it determines the metadata: then sizes and strides are in it, and neither a
  // subclass of TensorImpl nor Python answers for them.
  void note_block() {
    impl = tensor_impl(tensor);
    memcpy(block, found_block(), sizeof(block));
    requires_grad = impl->requires_grad();
    const char *inside = (const char *)impl + ImplLayout::begin(), *end = (const char *)impl + ImplLayout::end();
    const bool determines = typeid(*impl) == typeid(c10::TensorImpl) && impl->layout() == c10::kStrided &&
                            !impl->key_set().has_any(c10::python_ks) &&
                            (const char *)impl->sizes().data() >= inside &&
                            (const char *)(impl->strides().end()) <= end;
    if (!determines) impl = nullptr;
  }
};

struct TensorCheck {
  PyObject_HEAD
  Metadata *expected;
  vectorcallfunc call;
};

PyObject *tensor_check_call(PyObject *self, PyObject *const *args, size_t n, PyObject *) {
  if (PyVectorcall_NARGS(n) != 1) {
    PyErr_SetString(PyExc_TypeError, "expected one value");
    return nullptr;
  }
  if (!is_tensor(args[0])) Py_RETURN_FALSE;
  return PyBool_FromLong(!((TensorCheck *)self)->expected->difference(args[0]));
}

PyObject *tensor_check_why(PyObject *self, PyObject *value) {
  if (!is_tensor(value)) return PyUnicode_FromString("type");
  const char *property = ((TensorCheck *)self)->expected->difference(value);
  if (!property) Py_RETURN_NONE;
  return PyUnicode_FromString(property);
}

PyObject *tensor_check_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *tensor, *stride_source = nullptr;
  if (!PyArg_ParseTuple(args, "O|O!", &tensor, &PyTuple_Type, &stride_source)) return nullptr;
  if (!is_tensor(tensor)) {
    PyErr_SetString(PyExc_TypeError, "expected a tensor");
    return nullptr;
  }
  Metadata *m = Metadata::of(tensor);
  TensorCheck *self = m ? (TensorCheck *)type->tp_alloc(type, 0) : nullptr;
  if (!self) {
    delete m;
    return nullptr;
  }
  self->expected = m;
  self->call = tensor_check_call;
  if (!stride_source) return (PyObject *)self;
  const Py_ssize_t rank = PyTuple_GET_SIZE(stride_source);
  m->dynamic = std::make_unique<DynamicDimensions>();
  for (Py_ssize_t i = 0; i < rank; i++) {
    long j = PyLong_AsLong(PyTuple_GET_ITEM(stride_source, i));
    m->dynamic->stride_source.push_back(j < 0 || j >= rank ? -1 : j);
  }
  m->dynamic->minimum = m->dynamic->maximum = m->sizes().vec();
  if (!PyErr_Occurred() && rank != (Py_ssize_t)m->rank)
    PyErr_SetString(PyExc_ValueError, "expected one entry for each dimension");
  if (PyErr_Occurred()) Py_CLEAR(self);
  return (PyObject *)self;
}

PyObject *tensor_check_set_bounds(PyObject *self, PyObject *args) {
  DynamicDimensions *d = ((TensorCheck *)self)->expected->dynamic.get();
  Py_ssize_t dim;
  long long minimum, maximum;
  if (!PyArg_ParseTuple(args, "nLL", &dim, &minimum, &maximum)) return nullptr;
  if (!d || dim < 0 || dim >= (Py_ssize_t)d->stride_source.size()) {
    PyErr_SetString(PyExc_IndexError, "no such dimension");
    return nullptr;
  }
  d->minimum[dim] = minimum;
  d->maximum[dim] = maximum;
  Py_RETURN_NONE;
}

PyObject *tensor_check_sizes(PyObject *self, PyObject *) {
  const Metadata &m = *((TensorCheck *)self)->expected;
  if (m.dynamic) Py_RETURN_NONE;
  PyObject *sizes = PyTuple_New(m.rank);
  for (size_t i = 0; sizes && i < m.rank; i++)
    PyTuple_SET_ITEM(sizes, i, PyLong_FromLongLong(m.sizes()[i]));
  return sizes;
}

void tensor_check_dealloc(PyObject *self) {
  delete ((TensorCheck *)self)->expected;
  Py_TYPE(self)->tp_free(self);
}

// --- watched objects -----------------------------------------------------------------------------

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

// Most of what a record watches are unmodified dictionaries, instances and tensors. Each dictionary and
// instance costs the comparison of one word, in the order of addresses.
struct Watch {
  PyObject_HEAD
  std::vector<Word> *words;
  std::vector<WordOwner> *owners;  // of the words
  std::vector<WatchedInstance> *instances;
  std::vector<WatchedObject> *objects;
  std::vector<size_t> *others;  // indices of the objects without a word
  std::vector<WatchedTensor> *tensors;
  std::vector<Metadata> *expected;  // of the tensors
  PyObject *index;  // id of a watched object -> its index in `objects`
  std::string *failed;
  bool sorted;
  vectorcallfunc call;
};

bool holds_expected(const Location &p, PyObject *found) {
  if (!found) return p.expected == absent;
  if (!p.expected || found == p.expected) return true;
  if (!p.equal || Py_TYPE(found) != Py_TYPE(p.expected)) return false;
  int same = PyObject_RichCompareBool(found, p.expected, Py_EQ);
  if (same < 0) PyErr_Clear();
  if (same == 1 && PyFloat_CheckExact(found))
    return std::signbit(PyFloat_AS_DOUBLE(found)) == std::signbit(PyFloat_AS_DOUBLE(p.expected));
  if (same == 1 && !PyLong_Check(found) && !PyUnicode_CheckExact(found) && !PyBytes_CheckExact(found)) {
    // 0j and -0j, or two empty ranges, are equal but distinguishable.
    PyObject *a = PyObject_Repr(found), *b = PyObject_Repr(p.expected);
    same = a && b ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    Py_XDECREF(a);
    Py_XDECREF(b);
    PyErr_Clear();
  }
  return same == 1;
}

std::string short_repr(PyObject *object) {
  PyObject *repr = object ? PyObject_Repr(object) : nullptr;
  const char *s = repr ? PyUnicode_AsUTF8(repr) : nullptr;
  std::string out = s ? s : "?";
  Py_XDECREF(repr);
  PyErr_Clear();
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

bool has_keys_in_order(const WatchedObject &o) {
  Py_ssize_t position = 0, i = o.locations.size() - o.ordered_keys;
  PyObject *key, *value;
  while (PyDict_Next(o.object, &position, &key, &value)) {
    PyObject *expected = o.locations[i++].key;
    if (key != expected &&
        (Py_TYPE(key) != Py_TYPE(expected) || PyObject_RichCompareBool(key, expected, Py_EQ) != 1)) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

bool check_dict(Watch *w, const WatchedObject &o) {
  if (o.length >= 0 && PyDict_GET_SIZE(o.object) != o.length) return record_change(w, o, nullptr, nullptr);
  if (o.ordered_keys && !has_keys_in_order(o)) return record_change(w, o, nullptr, nullptr);
  for (const Location &p : o.locations) {
    PyObject *found = PyDict_GetItemWithError(o.object, p.key);
    if (!found) PyErr_Clear();
    if (!holds_expected(p, found)) return record_change(w, o, &p, found);
  }
  return true;
}

bool check_type(Watch *w, WatchedObject &o) {
  PyTypeObject *t = (PyTypeObject *)o.object;
  // A version tag is valid only with the type's flag, which a lookup sets. 0 never matches.
  _PyType_Lookup(t, class_name);
  const uint64_t version = PyType_HasFeature(t, Py_TPFLAGS_VALID_VERSION_TAG) ? t->tp_version_tag : 0;
  for (const Location &p : o.locations) {
    PyObject *found = PyTuple_Check(p.key) ? lookup_after_class(t, p.key)
                      : p.key == Py_None   ? t->tp_mro
                                           : _PyType_Lookup(t, p.key);
    if (!found) PyErr_Clear();
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
  if (!result) PyErr_Clear();
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
  PyErr_Clear();
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

bool is_unmodified(const WatchedObject &o) {
  const PyTypeObject *t = (PyTypeObject *)o.object;
  return o.kind == TYPE && o.version && t->tp_version_tag == o.version &&
         PyType_HasFeature((PyTypeObject *)t, Py_TPFLAGS_VALID_VERSION_TAG);
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

bool is_unchanged(Watch *w) {
  if (!w->sorted) sort_words(w);
  if (!check_words(w)) return false;
  for (const size_t i : *w->others) {
    WatchedObject &o = (*w->objects)[i];
    if (!is_unmodified(o) && !check_locations(w, o)) return false;
  }
  return check_tensors(w);
}

PyObject *watch_call(PyObject *self, PyObject *const *, size_t n, PyObject *) {
  if (PyVectorcall_NARGS(n) != 0) {
    PyErr_SetString(PyExc_TypeError, "expected no argument");
    return nullptr;
  }
  return PyBool_FromLong(is_unchanged((Watch *)self));
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
                   {Py_NewRef(key), expected == Py_Ellipsis ? nullptr : Py_NewRef(expected), equal != 0});
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
  delete w->failed;
  Py_TYPE(self)->tp_free(self);
}

// --- torch's global state ------------------------------------------------------------------------

// Grad and inference modes, the dispatch keys enabled or disabled on this thread (autocast, functorch
// and Python modes among them), the default dtype, the number of torch function modes (a default
// device is one), and the dtypes of autocast: a program may enable it without naming one.
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

PyObject *operators_may_be_observed(PyObject *, PyObject *) { return PyBool_FromLong(may_be_observed()); }

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

// --- attributes of fetched variables -------------------------------------------------------------

// Returns an entry of an instance's dictionary, without properties and methods of its class.
PyObject *instance_value(PyObject *instance, PyObject *name) {
  PyObject **dict_slot = _PyObject_GetDictPtr(instance);
  return dict_slot && *dict_slot ? PyDict_GetItemWithError(*dict_slot, name) : nullptr;
}

PyObject *attribute(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "expected an instance and a name");
    return nullptr;
  }
  PyObject *found = instance_value(args[0], args[1]);
  if (!found && !PyErr_Occurred()) PyErr_SetObject(PyExc_AttributeError, args[1]);
  return Py_XNewRef(found);
}

PyObject *lacks(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "expected an instance and names");
    return nullptr;
  }
  for (Py_ssize_t i = 1; i < count; i++) {
    if (instance_value(args[0], args[i])) Py_RETURN_FALSE;
    if (PyErr_Occurred()) return nullptr;
  }
  Py_RETURN_TRUE;
}

// --- calls with known arguments ------------------------------------------------------------------

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

// --- module --------------------------------------------------------------------------------------

// Finds the TensorImpl pointer in a tensor object. Called once, with any tensor and the address that
// torch reports for its TensorImpl.
PyObject *calibrate(PyObject *, PyObject *args) {
  PyObject *tensor;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "OK", &tensor, &address)) return nullptr;
  PyTypeObject *base = Py_TYPE(tensor);
  while (base->tp_base && base->tp_base != &PyBaseObject_Type) base = base->tp_base;
  const Py_ssize_t word = sizeof(void *);
  for (Py_ssize_t offset = sizeof(PyObject); offset + word <= base->tp_basicsize; offset += word)
    if (*(unsigned long long *)((char *)tensor + offset) == address) {
      impl_offset = offset;
      tensor_type = base;
      Py_INCREF(base);
      Py_RETURN_TRUE;
    }
  Py_RETURN_FALSE;
}

PyMethodDef watch_methods[] = {
    {"location", watch_location, METH_VARARGS,
     "(object, key, expected, equal): the expected value at a location of a dictionary, class, list, cell "
     "or function. expected: ABSENT for an empty location, ... for any value. The key of a class may be "
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

PyMethodDef tensor_check_methods[] = {
    {"why", tensor_check_why, METH_O, "Return the name of the first property that differs, or None."},
    {"sizes", tensor_check_sizes, METH_NOARGS, "Return the expected sizes; None if some are dynamic."},
    {"set_bounds", tensor_check_set_bounds, METH_VARARGS,
     "(dimension, least, most): set the accepted sizes of a dimension. Requires the constructor's second "
     "argument: for each dimension, the one whose size times stride is its stride, or -1."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject watch_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject tensor_check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject state_check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject partial_call_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef state_check_methods[] = {
    {"modes", state_check_modes, METH_NOARGS, "Return the expected modes, to compare with another check's."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef module_methods[] = {
    {"attribute", (PyCFunction)(void *)attribute, METH_FASTCALL,
     "(instance, name): return an entry of its dictionary. Raises AttributeError if there is none."},
    {"lacks", (PyCFunction)(void *)lacks, METH_FASTCALL,
     "(instance, names…): True if its dictionary has none of these names."},
    {"operators_may_be_observed", operators_may_be_observed, METH_NOARGS,
     "True if a mode, a transform, torch.jit.trace or hooks on saved tensors may see this thread's operators."},
    {"calibrate", calibrate, METH_VARARGS, "(tensor, tensor._cdata): find the layout of tensor objects."},
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
  slot_names = PyUnicode_InternFromString("__slotnames__");
  if (!class_name || !slot_names || !absent || PyModule_AddObjectRef(m, "ABSENT", absent) < 0 ||
      PyModule_AddObjectRef(m, "Watch", (PyObject *)&watch_type) < 0 ||
      PyModule_AddObjectRef(m, "TensorCheck", (PyObject *)&tensor_check_type) < 0 ||
      PyModule_AddObjectRef(m, "StateCheck", (PyObject *)&state_check_type) < 0 ||
      PyModule_AddObjectRef(m, "PartialCall", (PyObject *)&partial_call_type) < 0) {
    Py_DECREF(m);
    return nullptr;
  }
  return m;
}

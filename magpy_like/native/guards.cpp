// Checks that run on every call of a compiled function.
//
// `Watch` asks whether objects that the record knows by themselves still hold what they held. A
// dictionary or class that was not modified answers with one comparison of its version; only what
// was modified is looked up again. `TensorCheck` compares a tensor's metadata, `StateCheck` torch's
// global modes and the classes of tensors.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <string>
#include <vector>

// Its header would bring all of ATen.
namespace at::autocast {
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device);
}

namespace {

PyObject *absent;         // expected value of a place that must be empty
PyObject *class_name;     // "__class__"
PyObject *slot_names;     // "__slotnames__"
PyTypeObject *tensor_type;  // torch._C.TensorBase
Py_ssize_t impl_offset;   // where a tensor object keeps its TensorImpl

uint64_t version_of(PyObject *dict) {
#if PY_VERSION_HEX >= 0x030C0000
  _Py_COMP_DIAG_PUSH
  _Py_COMP_DIAG_IGNORE_DEPR_DECLS
  return ((PyDictObject *)dict)->ma_version_tag;
  _Py_COMP_DIAG_POP
#else
  return ((PyDictObject *)dict)->ma_version_tag;
#endif
}

// --- tensors -------------------------------------------------------------------------------------

c10::TensorImpl *impl_of(PyObject *tensor) {
  return *(c10::TensorImpl **)((char *)tensor + impl_offset);
}

bool is_tensor(PyObject *value) { return PyType_IsSubtype(Py_TYPE(value), tensor_type); }

struct Metadata {
  PyTypeObject *type;
  uint64_t keys;
  c10::ScalarType dtype;
  c10::Device device{c10::kCPU};
  bool requires_grad, strided;
  std::vector<int64_t> sizes, strides;
  // Of a tensor with dynamic dimensions: bounds of each size, and the next inner dimension that a
  // stride follows from (-1: the stride is what it was).
  std::vector<int64_t> least, most, inner;

  explicit Metadata(PyObject *tensor) : type(Py_TYPE(tensor)) {
    c10::TensorImpl *t = impl_of(tensor);
    keys = t->key_set().raw_repr();
    dtype = c10::typeMetaToScalarType(t->dtype());
    device = t->device();
    requires_grad = t->requires_grad();
    strided = t->layout() == c10::kStrided;
    sizes = t->sizes().vec();  // throws for a nested tensor, which has none
    if (strided) strides = t->strides().vec();
  }

  // No exception of torch's may pass through the interpreter, which is written in C.
  static Metadata *of(PyObject *tensor) {
    try {
      return new Metadata(tensor);
    } catch (const std::exception &) {
      PyErr_SetString(PyExc_TypeError, "a tensor whose sizes cannot be asked for");
      return nullptr;
    }
  }

  const char *differs(PyObject *tensor) const noexcept {
    try {
      return first_difference(tensor);
    } catch (const std::exception &) {
      return "kind";
    }
  }

  const char *first_difference(PyObject *tensor) const {
    if (Py_TYPE(tensor) != type) return "type";
    c10::TensorImpl *t = impl_of(tensor);
    if (t->dtype() != c10::scalarTypeToTypeMeta(dtype)) return "dtype";
    if (t->device() != device) return "device";
    if (t->requires_grad() != requires_grad) return "requires_grad";
    if (t->key_set().raw_repr() != keys) return "layout or dispatch keys";
    if (!inner.empty() && strided) {
      c10::IntArrayRef n = t->sizes(), s = t->strides();
      if (n.size() != sizes.size()) return "number of dimensions";
      for (size_t i = 0; i < sizes.size(); i++) {
        if (n[i] < least[i] || n[i] > most[i]) return "shape";
        if (s[i] != (inner[i] < 0 ? strides[i] : n[inner[i]] * s[inner[i]])) return "strides";
      }
      return nullptr;
    }
    if (t->sizes() != c10::IntArrayRef(sizes)) return "shape";
    if (strided && t->strides() != c10::IntArrayRef(strides)) return "strides";
    return nullptr;
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
  return PyBool_FromLong(!((TensorCheck *)self)->expected->differs(args[0]));
}

PyObject *tensor_check_why(PyObject *self, PyObject *value) {
  if (!is_tensor(value)) return PyUnicode_FromString("type");
  const char *what = ((TensorCheck *)self)->expected->differs(value);
  if (!what) Py_RETURN_NONE;
  return PyUnicode_FromString(what);
}

PyObject *tensor_check_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *tensor, *inner = nullptr;
  if (!PyArg_ParseTuple(args, "O|O!", &tensor, &PyTuple_Type, &inner)) return nullptr;
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
  if (!inner) return (PyObject *)self;
  Py_ssize_t rank = PyTuple_GET_SIZE(inner);
  for (Py_ssize_t i = 0; i < rank; i++) {
    long j = PyLong_AsLong(PyTuple_GET_ITEM(inner, i));
    m->inner.push_back(j < 0 || j >= rank ? -1 : j);
  }
  m->least = m->most = m->sizes;
  if (!PyErr_Occurred() && rank != (Py_ssize_t)m->sizes.size())
    PyErr_SetString(PyExc_ValueError, "expected one entry for each dimension");
  if (PyErr_Occurred()) Py_CLEAR(self);
  return (PyObject *)self;
}

PyObject *tensor_check_allow(PyObject *self, PyObject *args) {
  Metadata *m = ((TensorCheck *)self)->expected;
  Py_ssize_t dim;
  long long least, most;
  if (!PyArg_ParseTuple(args, "nLL", &dim, &least, &most)) return nullptr;
  if (dim < 0 || dim >= (Py_ssize_t)m->inner.size()) {
    PyErr_SetString(PyExc_IndexError, "no such dimension");
    return nullptr;
  }
  m->least[dim] = least;
  m->most[dim] = most;
  Py_RETURN_NONE;
}

void tensor_check_dealloc(PyObject *self) {
  delete ((TensorCheck *)self)->expected;
  Py_TYPE(self)->tp_free(self);
}

// --- watched objects -----------------------------------------------------------------------------

struct Place {
  PyObject *key;       // owned; None where there is only one place, and for the MRO of a type
  PyObject *expected;  // owned; `absent`: must be empty; null: must be there, whatever it holds
  bool equal;          // an equal plain value will do
};

enum Kind { DICT, TYPE, LIST, CELL, FUNCTION, CALLABLE };

struct Watched {
  Kind kind;
  PyObject *object;  // owned
  uint64_t version = 0;
  Py_ssize_t length = -1;  // of a list or dictionary, -1: any
  Py_ssize_t ordered = 0;  // of a dictionary: this many places at the end are its keys in order
  std::vector<Place> places;
};

struct Tensor {
  PyObject *tensor;  // owned
  Metadata expected;
};

struct Typed {
  PyObject *object;    // owned
  PyTypeObject *type;  // owned
};

// An instance may be given another dictionary: `where` is the place in the instance that points to it.
struct Holder {
  PyObject *object;  // owned
  PyObject **where;
  PyObject *dict;  // owned
};

struct Watch {
  PyObject_HEAD
  std::vector<Typed> *typed;
  std::vector<Holder> *holders;
  std::vector<Watched> *watched;
  std::vector<Tensor> *tensors;
  PyObject *index;  // id of a watched object -> its position
  std::string *failed;
  vectorcallfunc call;
};

bool matches(const Place &p, PyObject *found) {
  if (!found) return p.expected == absent;
  if (!p.expected || found == p.expected) return true;
  if (!p.equal || Py_TYPE(found) != Py_TYPE(p.expected)) return false;
  int same = PyObject_RichCompareBool(found, p.expected, Py_EQ);
  if (same < 0) PyErr_Clear();
  if (same == 1 && PyFloat_CheckExact(found))
    return std::signbit(PyFloat_AS_DOUBLE(found)) == std::signbit(PyFloat_AS_DOUBLE(p.expected));
  if (same == 1 && !PyLong_Check(found) && !PyUnicode_CheckExact(found) && !PyBytes_CheckExact(found)) {
    // 0j and -0j, or two empty ranges, are equal and yet not the same.
    PyObject *a = PyObject_Repr(found), *b = PyObject_Repr(p.expected);
    same = a && b ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    Py_XDECREF(a);
    Py_XDECREF(b);
    PyErr_Clear();
  }
  return same == 1;
}

std::string text(PyObject *object) {
  PyObject *repr = object ? PyObject_Repr(object) : nullptr;
  const char *s = repr ? PyUnicode_AsUTF8(repr) : nullptr;
  std::string out = s ? s : "?";
  Py_XDECREF(repr);
  PyErr_Clear();
  return out.size() > 80 ? out.substr(0, 80) + "…" : out;
}

bool fail(Watch *w, const Watched &o, const Place *p, PyObject *found) {
  std::string what;
  switch (o.kind) {
    case DICT: what = p ? "entry " + text(p->key) : std::string("the keys of a dictionary"); break;
    case TYPE: what = std::string(((PyTypeObject *)o.object)->tp_name) + "." + (p->key == Py_None ? "__mro__" : text(p->key)); break;
    case LIST: what = p ? "item " + text(p->key) + " of a list" : std::string("the length of a list"); break;
    case CELL: what = "a closure variable"; break;
    case FUNCTION: what = text(o.object) + "." + (p ? text(p->key) : ""); break;
    case CALLABLE: what = text(p ? p->key : nullptr); break;
  }
  *w->failed = what + " changed" + (p && found ? ": it is " + text(found) : "");
  return false;
}

// What `super` finds: (name, class) asks the classes behind that class in the MRO of `type`.
PyObject *find_after(PyTypeObject *type, PyObject *key) {
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

bool recheck(Watch *w, Watched &o) {
  switch (o.kind) {
    case DICT: {
      if (o.length >= 0 && PyDict_GET_SIZE(o.object) != o.length) return fail(w, o, nullptr, nullptr);
      if (o.ordered) {
        Py_ssize_t at = 0, i = o.places.size() - o.ordered;
        PyObject *key, *value;
        while (PyDict_Next(o.object, &at, &key, &value)) {
          PyObject *wanted = o.places[i++].key;
          if (key != wanted &&
              (Py_TYPE(key) != Py_TYPE(wanted) || PyObject_RichCompareBool(key, wanted, Py_EQ) != 1)) {
            PyErr_Clear();
            return fail(w, o, nullptr, nullptr);
          }
        }
      }
      for (const Place &p : o.places) {
        PyObject *found = PyDict_GetItemWithError(o.object, p.key);
        if (!found) PyErr_Clear();
        if (!matches(p, found)) return fail(w, o, &p, found);
      }
      o.version = version_of(o.object);
      return true;
    }
    case TYPE: {
      PyTypeObject *t = (PyTypeObject *)o.object;
      for (const Place &p : o.places) {
        PyObject *found = PyTuple_Check(p.key) ? find_after(t, p.key)
                          : p.key == Py_None ? t->tp_mro
                                             : _PyType_Lookup(t, p.key);
        if (!found) PyErr_Clear();
        if (!matches(p, found)) return fail(w, o, &p, found);
      }
      // A tag is only reliable while the type says so, which it does once it was asked for a name.
      // 0 never matches.
      _PyType_Lookup(t, class_name);
      o.version = PyType_HasFeature(t, Py_TPFLAGS_VALID_VERSION_TAG) ? t->tp_version_tag : 0;
      return true;
    }
    case LIST: {
      Py_ssize_t n = PyList_GET_SIZE(o.object);
      if (o.length >= 0 && n != o.length) return fail(w, o, nullptr, nullptr);
      for (const Place &p : o.places) {
        Py_ssize_t i = PyLong_AsSsize_t(p.key);
        if (i < 0) i += n;  // a place counted from the end
        PyObject *found = 0 <= i && i < n ? PyList_GET_ITEM(o.object, i) : nullptr;
        if (!matches(p, found)) return fail(w, o, &p, found);
      }
      return true;
    }
    case CELL: {
      PyObject *found = PyCell_GET(o.object);
      return matches(o.places[0], found) || fail(w, o, &o.places[0], found);
    }
    case FUNCTION: {
      PyFunctionObject *f = (PyFunctionObject *)o.object;
      for (const Place &p : o.places) {
        bool code = PyUnicode_CompareWithASCIIString(p.key, "__code__") == 0;
        bool keyword = PyUnicode_CompareWithASCIIString(p.key, "__kwdefaults__") == 0;
        PyObject *found = code ? f->func_code : keyword ? f->func_kwdefaults : f->func_defaults;
        if (!found) found = Py_None;
        if (!matches(p, found)) return fail(w, o, &p, found);
      }
      return true;
    }
    case CALLABLE: {
      PyObject *result = PyObject_CallNoArgs(o.object);
      bool good = result && PyObject_IsTrue(result) == 1;
      if (!result) PyErr_Clear();
      Py_XDECREF(result);
      return good || fail(w, o, &o.places[0], nullptr);
    }
  }
  return false;
}

// What is watched lies scattered in memory, so what comes next is fetched while this is compared.
constexpr size_t AHEAD = 12;

bool holds(Watch *w) {
  const size_t objects = w->watched->size(), tensors = w->tensors->size(), instances = w->typed->size();
  for (size_t i = 0; i < objects; i++) {
    if (i + AHEAD < objects) {
      const Watched &next = (*w->watched)[i + AHEAD];
      if (next.kind == DICT) __builtin_prefetch(&((PyDictObject *)next.object)->ma_version_tag);
    }
    Watched &o = (*w->watched)[i];
    if (o.kind == DICT) {
      if (version_of(o.object) == o.version) continue;
    } else if (o.kind == TYPE) {
      PyTypeObject *t = (PyTypeObject *)o.object;
      if (o.version && t->tp_version_tag == o.version && PyType_HasFeature(t, Py_TPFLAGS_VALID_VERSION_TAG))
        continue;
    }
    if (!recheck(w, o)) return false;
  }
  for (size_t i = 0; i < instances; i++) {
    if (i + AHEAD < instances) __builtin_prefetch((*w->typed)[i + AHEAD].object);
    const Typed &t = (*w->typed)[i];
    if (Py_TYPE(t.object) != t.type) {
      *w->failed = std::string("the class of a ") + t.type->tp_name + " changed";
      return false;
    }
  }
  for (const Holder &h : *w->holders)
    if (*h.where != h.dict) {
      *w->failed = std::string("the __dict__ of a ") + Py_TYPE(h.object)->tp_name + " changed";
      return false;
    }
  for (size_t i = 0; i < tensors; i++) {
    if (i + AHEAD < tensors) __builtin_prefetch(impl_of((*w->tensors)[i + AHEAD].tensor));
    const Tensor &t = (*w->tensors)[i];
    const char *what = t.expected.differs(t.tensor);
    if (what) {
      *w->failed = std::string("the ") + what + " of a parameter, buffer or known tensor changed";
      return false;
    }
  }
  return true;
}

PyObject *watch_call(PyObject *self, PyObject *const *, size_t n, PyObject *) {
  if (PyVectorcall_NARGS(n) != 0) {
    PyErr_SetString(PyExc_TypeError, "expected no argument");
    return nullptr;
  }
  return PyBool_FromLong(holds((Watch *)self));
}

Watched *entry(Watch *w, Kind kind, PyObject *object) {
  PyObject *id = PyLong_FromVoidPtr(object);
  if (!id) return nullptr;
  PyObject *at = PyDict_GetItemWithError(w->index, id);
  if (!at) {
    at = PyLong_FromSize_t(w->watched->size());
    if (!at || PyDict_SetItem(w->index, id, at) < 0) {
      Py_XDECREF(at);
      Py_DECREF(id);
      return nullptr;
    }
    Py_DECREF(at);
    w->watched->push_back({kind, Py_NewRef(object)});
    Py_DECREF(id);
    return &w->watched->back();
  }
  Py_DECREF(id);
  return &(*w->watched)[PyLong_AsSize_t(at)];
}

// The places of a function that are watched; any other function is a check to be called.
bool names_slot(PyObject *key) {
  return PyUnicode_Check(key) && (PyUnicode_CompareWithASCIIString(key, "__code__") == 0 ||
                                  PyUnicode_CompareWithASCIIString(key, "__defaults__") == 0 ||
                                  PyUnicode_CompareWithASCIIString(key, "__kwdefaults__") == 0);
}

PyObject *watch_place(PyObject *self, PyObject *args) {
  PyObject *object, *key, *expected;
  int equal;
  if (!PyArg_ParseTuple(args, "OOOp", &object, &key, &expected, &equal)) return nullptr;
  Kind kind = PyDict_Check(object)   ? DICT
              : PyType_Check(object) ? TYPE
              : PyList_Check(object) ? LIST
              : PyCell_Check(object) ? CELL
              : PyFunction_Check(object) && names_slot(key) ? FUNCTION
                                     : CALLABLE;
  if (kind == CALLABLE && !PyCallable_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "cannot watch this object");
    return nullptr;
  }
  Watched *o = entry((Watch *)self, kind, object);
  if (!o) return nullptr;
  // The ordered keys of a dictionary stay last.
  o->places.insert(o->places.end() - o->ordered,
                   {Py_NewRef(key), expected == Py_Ellipsis ? nullptr : Py_NewRef(expected), equal != 0});
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
  Watched *o = entry((Watch *)self, PyList_Check(object) ? LIST : DICT, object);
  if (!o) return nullptr;
  if (counted) {
    o->length = PyLong_AsSsize_t(keys);
    if (PyErr_Occurred()) return nullptr;
  } else if (!o->ordered) {
    o->length = o->ordered = PyList_GET_SIZE(keys);
    for (Py_ssize_t i = 0; i < o->length; i++)
      o->places.push_back({Py_NewRef(PyList_GET_ITEM(keys, i)), nullptr, false});
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
  ((Watch *)self)->tensors->push_back({Py_NewRef(tensor), std::move(*m)});
  delete m;
  Py_RETURN_NONE;
}

PyObject *watch_type_of(PyObject *self, PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  ((Watch *)self)->typed->push_back({Py_NewRef(object), (PyTypeObject *)Py_NewRef((PyObject *)type)});
  Py_RETURN_NONE;
}

PyObject *watch_holder(PyObject *self, PyObject *object) {
  PyObject **where = _PyObject_GetDictPtr(object);
  if (!where || !*where) Py_RETURN_FALSE;
  ((Watch *)self)->holders->push_back({Py_NewRef(object), where, Py_NewRef(*where)});
  Py_RETURN_TRUE;
}

PyObject *watch_why(PyObject *self, PyObject *) {
  Watch *w = (Watch *)self;
  if (holds(w)) Py_RETURN_NONE;
  return PyUnicode_DecodeUTF8(w->failed->data(), w->failed->size(), "replace");
}

PyObject *watch_counts(PyObject *self, PyObject *) {
  Watch *w = (Watch *)self;
  size_t places = 0;
  for (const Watched &o : *w->watched) places += o.places.size();
  return Py_BuildValue("nnn", w->watched->size(), places, w->tensors->size());
}

PyObject *watch_new(PyTypeObject *type, PyObject *, PyObject *) {
  Watch *w = (Watch *)type->tp_alloc(type, 0);
  if (!w) return nullptr;
  w->watched = new std::vector<Watched>();
  w->tensors = new std::vector<Tensor>();
  w->typed = new std::vector<Typed>();
  w->holders = new std::vector<Holder>();
  w->failed = new std::string();
  w->index = PyDict_New();
  w->call = watch_call;
  return (PyObject *)w;
}

int watch_traverse(PyObject *self, visitproc visit, void *arg) {
  Watch *w = (Watch *)self;
  for (Watched &o : *w->watched) {
    Py_VISIT(o.object);
    for (Place &p : o.places) {
      Py_VISIT(p.key);
      Py_VISIT(p.expected);
    }
  }
  for (Tensor &t : *w->tensors) Py_VISIT(t.tensor);
  for (Typed &t : *w->typed) {
    Py_VISIT(t.object);
    Py_VISIT(t.type);
  }
  for (Holder &h : *w->holders) {
    Py_VISIT(h.object);
    Py_VISIT(h.dict);
  }
  Py_VISIT(w->index);
  return 0;
}

int watch_clear(PyObject *self) {
  Watch *w = (Watch *)self;
  std::vector<Watched> watched;
  watched.swap(*w->watched);
  std::vector<Tensor> tensors;
  tensors.swap(*w->tensors);
  std::vector<Typed> typed;
  typed.swap(*w->typed);
  std::vector<Holder> holders;
  holders.swap(*w->holders);
  for (Watched &o : watched) {
    Py_DECREF(o.object);
    for (Place &p : o.places) {
      Py_XDECREF(p.key);
      Py_XDECREF(p.expected);
    }
  }
  for (Tensor &t : tensors) Py_DECREF(t.tensor);
  for (Typed &t : typed) {
    Py_DECREF(t.object);
    Py_DECREF(t.type);
  }
  for (Holder &h : holders) {
    Py_DECREF(h.object);
    Py_DECREF(h.dict);
  }
  Py_CLEAR(w->index);
  return 0;
}

void watch_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  watch_clear(self);
  Watch *w = (Watch *)self;
  delete w->watched;
  delete w->tensors;
  delete w->typed;
  delete w->holders;
  delete w->failed;
  Py_TYPE(self)->tp_free(self);
}

// --- torch's global state ------------------------------------------------------------------------

// Grad and inference modes, the dispatch keys switched on or off for this thread
// (autocast, functorch and Python modes among them), the default dtype, how many torch function
// modes there are, a default device being one, and the types that autocast casts to: a program may
// switch it on without naming one.
struct TorchState {
  long modes;
  uint64_t included, excluded;
  int64_t function_modes, casts;
  bool operator==(const TorchState &o) const {
    return modes == o.modes && included == o.included && excluded == o.excluded &&
           function_modes == o.function_modes && casts == o.casts;
  }
};

int64_t cast_type(c10::DeviceType device) { return (int64_t)at::autocast::get_autocast_dtype(device); }

TorchState current_state() {
  const c10::AutogradState &a = c10::AutogradState::get_tls_state();
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return {a.get_grad_mode() | a.get_fw_grad_mode() << 1 | a.get_inference_mode() << 2 |
              (long)c10::get_default_dtype_as_scalartype() << 8,
          keys.included_.raw_repr(), keys.excluded_.raw_repr(),
          at::impl::PythonTorchFunctionTLS::stack_len(),
          cast_type(c10::DeviceType::CPU) | cast_type(c10::DeviceType::CUDA) << 8};
}

// What a class must hold. It is looked through only if the class has been changed.
struct Namespace {
  PyObject *entries, *expected;  // owned dictionaries: the class's own, and a copy of what it held
  uint64_t version;
};

// What `copyreg` keeps on a class once one of its instances was copied says nothing of the class.
bool holds(Namespace &n) {
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
  std::vector<Namespace> *classes;
  vectorcallfunc call;
};

PyObject *state_check_call(PyObject *self, PyObject *const *, size_t, PyObject *) {
  StateCheck *check = (StateCheck *)self;
  if (!(current_state() == check->expected)) Py_RETURN_FALSE;
  for (Namespace &n : *check->classes)
    if (!holds(n)) Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

PyObject *state_check_new(PyTypeObject *type, PyObject *args, PyObject *) {
  StateCheck *self = (StateCheck *)type->tp_alloc(type, 0);
  if (!self) return nullptr;
  self->expected = current_state();
  self->classes = new std::vector<Namespace>();
  self->call = state_check_call;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
    PyObject *entries, *expected;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(args, i), "O!O!", &PyDict_Type, &entries, &PyDict_Type, &expected)) {
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
  for (Namespace &n : *((StateCheck *)self)->classes) {
    Py_VISIT(n.entries);
    Py_VISIT(n.expected);
  }
  return 0;
}

int state_check_clear(PyObject *self) {
  std::vector<Namespace> classes;
  classes.swap(*((StateCheck *)self)->classes);
  for (Namespace &n : classes) {
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

// --- attributes of what a call brings ------------------------------------------------------------

// What an instance holds itself, past all that its class, or that of its dictionary, may answer.
PyObject *held(PyObject *instance, PyObject *name) {
  PyObject **where = _PyObject_GetDictPtr(instance);
  return where && *where ? PyDict_GetItemWithError(*where, name) : nullptr;
}

PyObject *attribute(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "expected an instance and a name");
    return nullptr;
  }
  PyObject *found = held(args[0], args[1]);
  if (!found && !PyErr_Occurred()) PyErr_SetObject(PyExc_AttributeError, args[1]);
  return Py_XNewRef(found);
}

PyObject *lacks(PyObject *, PyObject *const *args, Py_ssize_t count) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "expected an instance and names");
    return nullptr;
  }
  for (Py_ssize_t i = 1; i < count; i++) {
    if (held(args[0], args[i])) Py_RETURN_FALSE;
    if (PyErr_Occurred()) return nullptr;
  }
  Py_RETURN_TRUE;
}

// --- module --------------------------------------------------------------------------------------

// Called once with any tensor and the address that torch reports for its TensorImpl.
PyObject *calibrate(PyObject *, PyObject *args) {
  PyObject *tensor;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "OK", &tensor, &address)) return nullptr;
  PyTypeObject *base = Py_TYPE(tensor);
  while (base->tp_base && base->tp_base != &PyBaseObject_Type) base = base->tp_base;
  for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void *) <= base->tp_basicsize; at += sizeof(void *))
    if (*(unsigned long long *)((char *)tensor + at) == address) {
      impl_offset = at;
      tensor_type = base;
      Py_INCREF(base);
      Py_RETURN_TRUE;
    }
  Py_RETURN_FALSE;
}

PyMethodDef watch_methods[] = {
    {"place", watch_place, METH_VARARGS,
     "(object, key, expected, equal): what a dictionary, class, list or cell must hold. expected: ABSENT "
     "for nothing, ... for anything. The key of a class may be (name, class): what super finds behind "
     "that class. A callable must return true; key then names it."},
    {"size", watch_size, METH_VARARGS, "(list or dict, length) or (dict, keys in order)"},
    {"tensor", watch_tensor, METH_O, "A tensor whose metadata must not change."},
    {"type", watch_type_of, METH_O, "An object that must stay of the class that it is of."},
    {"holder", watch_holder, METH_O,
     "An object that must keep the dictionary of its attributes; returns whether it has one."},
    {"why", watch_why, METH_NOARGS, "What changed, in words, or None."},
    {"counts", watch_counts, METH_NOARGS, "(objects, places, tensors) watched."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef tensor_check_methods[] = {
    {"why", tensor_check_why, METH_O, "Which part of the metadata differs, or None."},
    {"allow", tensor_check_allow, METH_VARARGS,
     "(dimension, least, most): the sizes that a dimension may have. Only of a check that was given, "
     "for each dimension, the one that its stride is the product of size and stride of, or -1."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject watch_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject tensor_check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject state_check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef state_check_methods[] = {
    {"modes", state_check_modes, METH_NOARGS, "The modes that it expects, to be compared with another's."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef module_methods[] = {
    {"attribute", (PyCFunction)(void *)attribute, METH_FASTCALL,
     "(instance, name): what it holds itself. Raises AttributeError when that is nothing."},
    {"lacks", (PyCFunction)(void *)lacks, METH_FASTCALL,
     "(instance, names…): whether it holds nothing itself under any of these names."},
    {"calibrate", calibrate, METH_VARARGS, "(tensor, tensor._cdata): learn how tensors are laid out."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_guards", nullptr, -1, module_methods};

bool ready(PyTypeObject &t, const char *name, size_t size, newfunc make, destructor dealloc, size_t call,
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
  ready(watch_type, "_magpy_guards.Watch", sizeof(Watch), watch_new, watch_dealloc, offsetof(Watch, call),
        watch_methods);
  watch_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  watch_type.tp_traverse = watch_traverse;
  watch_type.tp_clear = watch_clear;
  ready(tensor_check_type, "_magpy_guards.TensorCheck", sizeof(TensorCheck), tensor_check_new,
        tensor_check_dealloc, offsetof(TensorCheck, call), tensor_check_methods);
  ready(state_check_type, "_magpy_guards.StateCheck", sizeof(StateCheck), state_check_new, state_check_dealloc,
        offsetof(StateCheck, call), state_check_methods);
  state_check_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  state_check_type.tp_traverse = state_check_traverse;
  state_check_type.tp_clear = state_check_clear;
  if (PyType_Ready(&watch_type) < 0 || PyType_Ready(&tensor_check_type) < 0 ||
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
      PyModule_AddObjectRef(m, "StateCheck", (PyObject *)&state_check_type) < 0) {
    Py_DECREF(m);
    return nullptr;
  }
  return m;
}

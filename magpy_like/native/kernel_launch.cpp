// `KernelLaunch`: launches of a compiled kernel on a GPU, called with tensors, sizes and numbers.
//
// A call reads the tensors' addresses, picks a variant, packs the parameters, and calls the driver once
// for each stage. Python supplies what is rare or costs little: the plan of new sizes, the variants,
// workspaces, the current stream. It also launches what this type does not cover (`python`): another
// device is current, or the parameters of a variant are unknown.
//
// The driver's four functions are declared here and looked up at run time, so that the helper is the
// same with and without CUDA.
#include "tensor_objects.h"

#include <dlfcn.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

using tensor_objects::is_tensor;
using tensor_objects::tensor_impl;

// --- driver --------------------------------------------------------------------------------------

// Types of cuda.h: CUresult is an enumeration, handles are pointers.
struct Driver {
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
                void **parameters, void **extra);
  int (*current_context)(void **context);
  int (*error_name)(int result, const char **text);
  int (*error_text)(int result, const char **text);
};
Driver driver;

template <typename Function>
bool look_up(void *library, const char *name, Function &function) {
  function = (Function)dlsym(library, name);
  return function != nullptr;
}

PyObject *open_driver(PyObject *, PyObject *path) {
  const char *name = PyUnicode_AsUTF8(path);
  if (!name) return nullptr;
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // stays open: kernels refer to it
  Driver found;
  if (!library || !look_up(library, "cuLaunchKernel", found.launch) ||
      !look_up(library, "cuCtxGetCurrent", found.current_context) ||
      !look_up(library, "cuGetErrorName", found.error_name) ||
      !look_up(library, "cuGetErrorString", found.error_text))
    Py_RETURN_FALSE;
  driver = found;
  Py_RETURN_TRUE;
}

// nullptr if this thread has no context.
void *current_context() {
  void *context = nullptr;
  return driver.current_context && driver.current_context(&context) == 0 ? context : nullptr;
}

PyObject *driver_context(PyObject *, PyObject *) { return PyLong_FromVoidPtr(current_context()); }

// --- kernels -------------------------------------------------------------------------------------

constexpr Py_ssize_t MAX_PARAMETERS = 500;  // CUDA admits 4096 bytes on every device
constexpr Py_ssize_t MAX_STAGES = 32;
constexpr uintptr_t ALIGNMENT = 16;  // bytes
constexpr Py_ssize_t SCRATCH = 2;    // at most: null pointers after the arguments

struct Stage {
  std::string name;
  void *function;
  unsigned threads, shared_bytes;
};

struct Variant {
  bool in_python = false;
  void *context;
  std::vector<Stage> stages;
};

// Facts that depend on sizes.
struct Plan {
  std::vector<int64_t> sizes;
  std::vector<int64_t> grids;
  bool wide;
  PyObject *elements;  // of workspaces; a tuple
};

struct KernelLaunch {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *python, *plan_of, *variant_of, *workspace_of, *stream_of, *device;
  Py_ssize_t pointers, workspaces, sizes;
  std::string *numbers;                // per number: its type, as a letter of Python's `struct`
  std::unique_ptr<Plan> *plan;         // of the last sizes
  std::unique_ptr<Variant> *variants;  // [wide][aligned]; never replaced, since a launch may use it

  Py_ssize_t arguments() const { return pointers + sizes + (Py_ssize_t)numbers->size(); }
};

// The values of a call, eight bytes each. The machine is little-endian, as every host of CUDA: a
// parameter of four bytes is the first half.
struct Parameters {
  uint64_t values[MAX_PARAMETERS];
  void *places[MAX_PARAMETERS];
};

// False with an error set. As `Tensor.data_ptr`, also for memory that is copied on write.
bool read_address(PyObject *value, uint64_t &address) {
  if (PyLong_Check(value)) {
    address = PyLong_AsUnsignedLongLong(value);
    return !PyErr_Occurred();
  }
  if (!is_tensor(value)) {
    PyErr_Format(PyExc_TypeError, "a kernel expected a tensor or an address, got %s",
                 Py_TYPE(value)->tp_name);
    return false;
  }
  try {
    address = (uint64_t)tensor_impl(value)->mutable_data();
    return true;
  } catch (const std::exception &error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return false;
  }
}

template <typename T>
void store(uint64_t &place, T value) {
  place = 0;
  memcpy(&place, &value, sizeof(value));
}

bool read_number(char type, PyObject *value, uint64_t &place) {
  switch (type) {
    case 'd': store(place, PyFloat_AsDouble(value)); break;
    case 'f': store(place, (float)PyFloat_AsDouble(value)); break;
    case 'q': store(place, PyLong_AsLongLong(value)); break;
    default: {
      long long number = PyLong_AsLongLong(value);
      if (!PyErr_Occurred() && number != (int32_t)number)
        PyErr_SetString(PyExc_OverflowError, "a kernel's number needs more than 32 bits");
      store(place, (int32_t)number);
    }
  }
  return !PyErr_Occurred();
}

// Python's answer is a tuple; else false with an error set.
bool expect_tuple(PyObject *answer) {
  if (!PyTuple_Check(answer))
    PyErr_Format(PyExc_TypeError, "expected a tuple, got %s", Py_TYPE(answer)->tp_name);
  return PyTuple_Check(answer);
}

// --- plans ---------------------------------------------------------------------------------------

// The plan of Python: ((grid, ...), (elements, ...), wide). nullptr with an error set.
std::unique_ptr<Plan> make_plan(KernelLaunch *self, PyObject *const *sizes) {
  PyObject *result = PyObject_Vectorcall(self->plan_of, sizes, self->sizes, nullptr);
  if (!result) return nullptr;
  PyObject *grids, *elements;
  int wide;
  std::unique_ptr<Plan> plan;
  if (expect_tuple(result) &&
      PyArg_ParseTuple(result, "O!O!p", &PyTuple_Type, &grids, &PyTuple_Type, &elements, &wide)) {
    plan = std::make_unique<Plan>();
    plan->wide = wide;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(grids) && !PyErr_Occurred(); i++)
      plan->grids.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(grids, i)));
    if (PyTuple_GET_SIZE(grids) > MAX_STAGES) PyErr_SetString(PyExc_ValueError, "too many stages");
    if (PyErr_Occurred()) plan.reset();
    else plan->elements = Py_NewRef(elements);
  }
  Py_DECREF(result);
  return plan;
}

// The plan of these sizes, owned by `self` until the next Python code runs. nullptr with an error set.
const Plan *plan_for(KernelLaunch *self, PyObject *const *objects, const uint64_t *sizes) {
  const size_t bytes = self->sizes * sizeof(uint64_t);
  if (Plan *known = self->plan->get())
    if (!bytes || !memcmp(known->sizes.data(), sizes, bytes)) return known;
  auto plan = make_plan(self, objects);
  if (!plan) return nullptr;
  plan->sizes.assign((const int64_t *)sizes, (const int64_t *)sizes + self->sizes);
  self->plan->swap(plan);
  if (plan) Py_DECREF(plan->elements);  // integers: their end runs no code
  return self->plan->get();
}

// --- variants ------------------------------------------------------------------------------------

bool read_stages(PyObject *list, Variant &variant) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list); i++) {
    const char *name;
    unsigned long long function;
    unsigned threads, shared_bytes;
    PyObject *stage = PyTuple_GET_ITEM(list, i);
    if (!expect_tuple(stage) ||
        !PyArg_ParseTuple(stage, "sKII", &name, &function, &threads, &shared_bytes))
      return false;
    variant.stages.push_back({name, (void *)function, threads, shared_bytes});
  }
  return true;
}

// The variant of Python: (context, ((name, function, threads, bytes of shared memory), ...)), or None.
const Variant *variant_for(KernelLaunch *self, bool wide, bool aligned) {
  auto &place = self->variants[2 * wide + aligned];
  if (place) return place.get();
  PyObject *args[] = {wide ? Py_True : Py_False, aligned ? Py_True : Py_False};
  PyObject *result = PyObject_Vectorcall(self->variant_of, args, 2, nullptr);
  if (!result) return nullptr;
  auto variant = std::make_unique<Variant>();
  unsigned long long context = 0;
  PyObject *stages;
  variant->in_python = result == Py_None;
  bool read = variant->in_python ||
              (expect_tuple(result) && PyArg_ParseTuple(result, "KO!", &context, &PyTuple_Type, &stages) &&
               read_stages(stages, *variant));
  variant->context = (void *)context;
  variant->in_python |= !context;
  Py_DECREF(result);
  if (!read) return nullptr;
  if (!place) place = std::move(variant);  // another thread may have been faster
  return place.get();
}

// --- launches ------------------------------------------------------------------------------------

bool raise_failure(const Stage &stage, int64_t grid, int result) {
  const char *name = nullptr, *text = nullptr;
  driver.error_name(result, &name);
  driver.error_text(result, &text);
  PyErr_Format(PyExc_RuntimeError,
               "CUDA could not launch the kernel %s (%lld programs of %u threads, %u bytes of shared "
               "memory): %s: %s. The error may come from work that the GPU did before; "
               "CUDA_LAUNCH_BLOCKING=1 shows where.",
               stage.name.c_str(), (long long)grid, stage.threads, stage.shared_bytes,
               name ? name : "unknown error", text ? text : "no description");
  return false;
}

bool launch_stages(const Variant &variant, const int64_t *grids, void *stream, void **parameters) {
  for (size_t i = 0; i < variant.stages.size(); i++) {
    const Stage &stage = variant.stages[i];
    if (!grids[i]) continue;
    int result;
    // The driver may wait until the GPU has room for more work.
    Py_BEGIN_ALLOW_THREADS
    result = driver.launch(stage.function, (unsigned)grids[i], 1, 1, stage.threads, 1, 1,
                           stage.shared_bytes, stream, parameters, nullptr);
    Py_END_ALLOW_THREADS
    if (result) return raise_failure(stage, grids[i], result);
  }
  return true;
}

bool current_stream(KernelLaunch *self, void *&stream) {
  PyObject *address = PyObject_Vectorcall(self->stream_of, &self->device, 1, nullptr);
  if (!address) return false;
  stream = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return !PyErr_Occurred();
}

// The tensors of the workspaces, whose addresses are stored; nullptr with an error set.
PyObject *make_workspace(KernelLaunch *self, PyObject *elements, uint64_t *addresses) {
  PyObject *room = PyObject_CallOneArg(self->workspace_of, elements);
  if (!room) return nullptr;
  bool valid = PyList_Check(room) && PyList_GET_SIZE(room) == self->workspaces;
  if (!valid) PyErr_SetString(PyExc_TypeError, "expected a list of workspaces");
  for (Py_ssize_t i = 0; valid && i < self->workspaces; i++)
    valid = read_address(PyList_GET_ITEM(room, i), addresses[i]);
  if (!valid) Py_CLEAR(room);
  return room;
}

bool fits_int32(const uint64_t *sizes, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++)
    if ((int64_t)sizes[i] != (int32_t)sizes[i]) return false;
  return true;
}

// Reads the arguments into their places among the parameters. `together` is the union of all bits
// of the addresses.
bool read_arguments(KernelLaunch *self, PyObject *const *args, uint64_t *values, uint64_t &together) {
  together = 0;
  for (Py_ssize_t i = 0; i < self->pointers; i++) {
    if (!read_address(args[i], values[i])) return false;
    together |= values[i];
  }
  uint64_t *rest = values + self->pointers + self->workspaces;
  args += self->pointers;
  for (Py_ssize_t i = 0; i < self->sizes; i++)
    if (!read_number('q', args[i], rest[i])) return false;
  for (size_t i = 0; i < self->numbers->size(); i++)
    if (!read_number((*self->numbers)[i], args[self->sizes + i], rest[self->sizes + i])) return false;
  return true;
}

PyObject *kernel_launch_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
  auto *self = (KernelLaunch *)object;
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (names || count != self->arguments())
    return PyErr_Format(PyExc_TypeError, "a kernel expected %zd arguments, got %zd",
                        self->arguments(), count + (names ? PyTuple_GET_SIZE(names) : 0));
  Parameters parameters;
  uint64_t together;
  if (!read_arguments(self, args, parameters.values, together)) return nullptr;
  const uint64_t *sizes = parameters.values + self->pointers + self->workspaces;
  const Plan *plan = plan_for(self, args + self->pointers, sizes);
  if (!plan) return nullptr;
  // The plan may be replaced as soon as Python code runs.
  int64_t grids[MAX_STAGES] = {};
  bool fits = plan->wide || fits_int32(sizes, self->sizes);
  for (size_t i = 0; i < plan->grids.size(); i++) {
    grids[i] = plan->grids[i];
    fits = fits && 0 <= grids[i] && grids[i] <= INT_MAX;
  }
  if (!grids[0]) Py_RETURN_NONE;
  const size_t stages = plan->grids.size();
  PyObject *elements = Py_NewRef(plan->elements);
  const Variant *variant = variant_for(self, plan->wide, !(together & (ALIGNMENT - 1)));
  PyObject *room = nullptr;
  void *stream;
  PyObject *result = nullptr;
  if (!variant) {
  } else if (variant->in_python || !fits || variant->stages.size() != stages ||
             current_context() != variant->context) {
    result = PyObject_Vectorcall(self->python, args, count, nullptr);
  } else if ((!self->workspaces ||
              (room = make_workspace(self, elements, parameters.values + self->pointers))) &&
             current_stream(self, stream)) {
    const Py_ssize_t given = self->workspaces + count;
    for (Py_ssize_t i = 0; i < given + SCRATCH; i++) {
      if (i >= given) parameters.values[i] = 0;
      parameters.places[i] = &parameters.values[i];
    }
    if (launch_stages(*variant, grids, stream, parameters.places)) result = Py_NewRef(Py_None);
  }
  Py_XDECREF(room);  // the allocator reuses it only for work that comes later on this stream
  Py_DECREF(elements);
  return result;
}

// --- type ----------------------------------------------------------------------------------------

PyObject *kernel_launch_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *python, *plan_of, *variant_of, *workspace_of, *stream_of, *device;
  Py_ssize_t pointers, workspaces, sizes;
  const char *numbers;
  if (!PyArg_ParseTuple(args, "OOOOOO!nnns", &python, &plan_of, &variant_of, &workspace_of, &stream_of,
                        &PyLong_Type, &device, &pointers, &workspaces, &sizes, &numbers))
    return nullptr;
  std::string types = numbers;
  if (pointers < 0 || workspaces < 0 || sizes < 0 ||
      pointers + workspaces + sizes + (Py_ssize_t)types.size() + SCRATCH > MAX_PARAMETERS)
    return PyErr_Format(PyExc_ValueError, "a kernel has too many parameters");
  if (types.find_first_not_of("iqfd") != std::string::npos)
    return PyErr_Format(PyExc_ValueError, "unknown types of numbers: %s", numbers);
  auto *self = (KernelLaunch *)type->tp_alloc(type, 0);
  if (!self) return nullptr;
  self->call = kernel_launch_call;
  self->python = Py_NewRef(python);
  self->plan_of = Py_NewRef(plan_of);
  self->variant_of = Py_NewRef(variant_of);
  self->workspace_of = Py_NewRef(workspace_of);
  self->stream_of = Py_NewRef(stream_of);
  self->device = Py_NewRef(device);
  self->pointers = pointers;
  self->workspaces = workspaces;
  self->sizes = sizes;
  self->numbers = new std::string(std::move(types));
  self->plan = new std::unique_ptr<Plan>;
  self->variants = new std::unique_ptr<Variant>[4];
  return (PyObject *)self;
}

int kernel_launch_traverse(PyObject *object, visitproc visit, void *arg) {
  auto *self = (KernelLaunch *)object;
  Py_VISIT(self->python);
  Py_VISIT(self->plan_of);
  Py_VISIT(self->variant_of);
  Py_VISIT(self->workspace_of);
  Py_VISIT(self->stream_of);
  return 0;
}

void kernel_launch_dealloc(PyObject *object) {
  auto *self = (KernelLaunch *)object;
  PyObject_GC_UnTrack(object);
  for (PyObject *held : {self->python, self->plan_of, self->variant_of, self->workspace_of,
                         self->stream_of, self->device})
    Py_XDECREF(held);
  if (*self->plan) Py_DECREF((*self->plan)->elements);
  delete self->numbers;
  delete self->plan;
  delete[] self->variants;
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject kernel_launch_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef methods[] = {
    {"open_driver", open_driver, METH_O,
     "(path): use this library as the CUDA driver; False if it cannot be opened or lacks a function."},
    {"driver_context", driver_context, METH_NOARGS,
     "Return the address of this thread's current CUDA context; 0 if there is none."},
    {"calibrate", tensor_objects::calibrate, METH_VARARGS,
     "(tensor, tensor._cdata): find the layout of tensor objects."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_magpy_launch", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__magpy_launch(void) {
  kernel_launch_type.tp_name = "_magpy_launch.KernelLaunch";
  kernel_launch_type.tp_basicsize = sizeof(KernelLaunch);
  kernel_launch_type.tp_flags =
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  kernel_launch_type.tp_new = kernel_launch_new;
  kernel_launch_type.tp_call = PyVectorcall_Call;
  kernel_launch_type.tp_vectorcall_offset = offsetof(KernelLaunch, call);
  kernel_launch_type.tp_traverse = kernel_launch_traverse;
  kernel_launch_type.tp_dealloc = kernel_launch_dealloc;
  kernel_launch_type.tp_doc =
      "(python, plan, variant, workspace, stream, device, pointers, workspaces, sizes, numbers): launches "
      "a compiled kernel.";
  if (PyType_Ready(&kernel_launch_type) < 0) return nullptr;
  PyObject *m = PyModule_Create(&module);
  if (m && PyModule_AddObjectRef(m, "KernelLaunch", (PyObject *)&kernel_launch_type) < 0) Py_CLEAR(m);
  return m;
}

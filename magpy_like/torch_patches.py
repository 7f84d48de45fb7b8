"""Changes to torch, Triton and Python's process state at run time.

Each function here makes one change, states its reason and the version on which it was seen, and
undoes the change if it is temporary. No other module of ``magpy_like`` assigns to an attribute of
torch, Triton or the standard library (``tests/test_torch_patches.py`` checks that, and
``tests/test_imports.py`` the effects of an import).

On ``import magpy_like``, nothing changes but:

- ``MAGPY_LOGS``, if set, attaches handlers to loggers below ``magpy_like`` (``logs``).
- The code objects of some functions of ``magpy_like`` are marked (:func:`untraced`).
- The native helper is loaded if a binary is at hand. The first ``compile`` on a machine makes one.

The first ``compile`` imports Dynamo and sympy, as AOTAutograd needs them. They register operators
and pytree classes of their own, set ``TORCHINDUCTOR_CACHE_DIR``, and add a filter of warnings.

On ``import magpy_like.compiler``, the operators of the namespace ``torch.ops.magpy_like`` are
registered too (:func:`operator_library`).

While a program runs under the monitor: :class:`Compiling`, and in native code (``Scope`` in
``native/monitored_call.h``) two callbacks in ``gc.callbacks``, which enclose those of the program,
and a trace function, which replaces the one of ``sys.settrace``. During own work, the C handlers of
signals that have a handler in Python are replaced (``native/interrupts.cpp``).

While torch traces a graph or a backend compiles it: :func:`silent_fake_tensor_errors`,
:func:`forget_fake_results`, :func:`bound_tables`, :func:`rewriting_ptx`,
:func:`transient_graph_sources`, :func:`graphs_count_writes`, :func:`gradients_own_elements`,
:func:`dropout_of_all_draws_nothing`, :func:`lazy_unobserved_graphs`, :class:`NotedDescribers`, and
for good :func:`keep_error_checks`. The modes of torch that one thread enters and leaves (gradient
mode, autocast, hooks on saved tensors, the default device) are listed in ``torch_compat``.

Once a CUDA graph lends results: :func:`note_streams_of`.

``magpy annotations verify`` changes more (random state, recursion limit, environment), in processes
of its own.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import linecache
import logging
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import torch
from torch.fx import graph_module

from magpy_like.torch_compat.frame_evaluation import (
    FrameAction,
    FrameExecStrategy,
    set_code_exec_strategy,
)
from magpy_like.torch_compat.tracing.fake_tensors import (
    FAKE_TENSOR_LOGGER,
    FakeTensorMode,
    meta_utils,
)
from magpy_like.torch_compat.tracing.graph_sources import GRAPH_SOURCES, exec_graph_source
from magpy_like.torch_compat.tracing.unobserved_modules import (
    UnobservedLazyGraphModule,
    lazy_graph_module,
)

F = TypeVar("F", bound=Callable[..., Any])

# --- torch ----------------------------------------------------------------------------------------

_compiling_lock = threading.Lock()
_compiling_count = 0


class Compiling:
    """Context in which ``torch.compiler.is_compiling()`` is true.

    Programs choose their code by it and expect that of a compiled region. Applied while a program
    runs under the monitor. Torch has one flag for all threads, so it stays set until the last
    thread leaves. *Seen* on torch 2.13: the flag is a global variable of ``torch.compiler``.
    """

    def __init__(self, reports: bool = True) -> None:
        """``reports`` is False for a program that must not observe the flag."""
        self._reports, self._entered = reports, False

    def enter(self) -> None:
        self._change(self._reports)

    def leave(self) -> None:
        self._change(False)

    def _change(self, entered: bool) -> None:
        global _compiling_count
        with _compiling_lock:
            _compiling_count += entered - self._entered
            self._entered = entered
            torch.compiler._is_compiling_flag = _compiling_count > 0

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()


def untraced(function: F) -> F:
    """``function``, marked so that Dynamo traces neither it nor its callees.

    Autograd calls backward passes and hooks while the program runs. Under ``torch.compile``, such
    as of a program with ``loss.backward()``, Dynamo would compile their Python frame by frame, and
    that of this compiler, where it compiles a pass lazily. Applied at import, as a decorator. The
    mark is on the code object and costs a call nothing. *Measured*: ``torch.compiler.disable``
    costs each call 0.3 µs. *Seen* on torch 2.13.
    """
    skipped = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skipped)
    # In a frame that Dynamo traces, a call of the function breaks the graph, without a warning.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


@functools.cache
def note_streams_of(is_noted: Callable[[Any], bool], note: Callable[[Any], object]) -> None:
    """Have ``Tensor.record_stream`` pass the stream to ``note`` if ``is_noted`` admits the tensor.

    The allocator of GPU memory ignores a tensor whose memory it has not handed out itself, such as
    a result that a CUDA graph lends. Applied, for good, when the first CUDA graph with such results
    is captured.
    """
    record_stream = torch.Tensor.record_stream

    @functools.wraps(record_stream)
    def noting(tensor: Any, stream: Any) -> None:
        if is_noted(tensor):
            note(stream)
        record_stream(tensor, stream)

    torch.Tensor.record_stream = noting


def operator_library() -> torch.library.Library:
    """Open the namespace ``torch.ops.magpy_like`` for definitions, once in a process.

    Operators have to be registered so that AOTAutograd, passes and autograd treat each as one step.
    Applied on the import of ``graph_operators.custom_operators``; it is never undone.
    """
    return torch.library.Library("magpy_like", "DEF")


@functools.cache
def keep_error_checks() -> None:
    """Have torch keep the checks of linear algebra in its graphs, though they return nothing.

    ``linalg.cholesky`` and others raise by them. Applied, for good, before AOTAutograd runs for the
    first time. *Seen* on torch 2.11, which removes them as unused; 2.13 knows their effect.
    """
    torch.fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)


def forget_fake_results() -> None:
    """Empty torch's cache of operators' results on fake tensors, which all modes share.

    *Seen* on torch 2.13: its keys lack the current GPU, on which results of ``device="cuda"``
    depend. Applied before a graph with such a call is traced (``torch_interop.current_gpu``).
    """
    FakeTensorMode.cache_clear()


MAX_TABLE_ENTRIES = 4096
"""In a table of torch's that has no bound; a large model makes hundreds."""


def bound_tables() -> None:
    """Empty torch's tables of results on fake tensors and of relations of sizes, if they are large.

    Torch keeps all entries, and each new number or size has its own: they would fill the memory of
    a process that always compiles new programs. Applied before a trace (``torch_interop``). *Seen*
    on torch 2.13.
    """
    if len(FakeTensorMode.cache) > MAX_TABLE_ENTRIES:
        FakeTensorMode.cache.clear()
    from magpy_like.torch_compat.tracing.symbolic_expressions import SIZE_RELATIONS  # imports sympy

    if SIZE_RELATIONS.cache_info().currsize > MAX_TABLE_ENTRIES:
        SIZE_RELATIONS.cache_clear()


@contextlib.contextmanager
def silent_fake_tensor_errors() -> Iterator[None]:
    """Drop this thread's reports of operators that raise on fake tensors.

    Torch logs them as errors; in this context they are an answer. Applied while an operator that
    raised is tried again without data (``monitor.operator_graph.data_dependent_errors``), and while
    a branch that the program may not take runs without data (``control_flow.paths``).
    """
    logger, own = logging.getLogger(FAKE_TENSOR_LOGGER), threading.get_ident()

    def is_of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != own

    logger.addFilter(is_of_another_thread)
    try:
        yield
    finally:
        logger.removeFilter(is_of_another_thread)


@contextlib.contextmanager
def graphs_count_writes(check: Callable[[Any], None]) -> Iterator[None]:
    """Keep wrappers that AOTAutograd makes in this thread from counting writes to inputs, and from
    giving tensors attributes that only Dynamo reads.

    ``check`` is called with the metadata of each graph, and may raise.

    A wrapper counts the writes that a graph makes, for compilers whose kernels do not count them;
    those of ``magpy_like.compiler`` do. It marks the sizes of results that may vary, for the next
    graph that Dynamo captures. Applied while AOTAutograd runs, under the lock of tracing. *Seen* on
    torch 2.13.
    """
    from magpy_like.torch_compat.aot_autograd import ViewAndMutationMeta
    from magpy_like.torch_compat.tracing.tracing_context import TracingContext

    derive, own = ViewAndMutationMeta.__post_init__, threading.get_ident()

    def derive_fields(metadata: Any) -> None:
        derive(metadata)
        if threading.get_ident() == own:
            check(metadata)
            metadata.mutated_graph_handled_indices_seen_by_autograd = []
            if TracingContext.try_get() is None:
                metadata.dynamic_outputs = False

    ViewAndMutationMeta.__post_init__ = derive_fields
    try:
        yield
    finally:
        ViewAndMutationMeta.__post_init__ = derive


@contextlib.contextmanager
def gradients_own_elements(has_overlap: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Have AOTAutograd in this thread take the gradient of a result whose elements overlap in
    memory, such as ``x.unfold(0, 2, 1)``, in a layout in which they do not.

    A gradient in the strides of such a result has one element for several. Applied while
    AOTAutograd runs, under the lock of tracing. *Seen* on torch 2.13, which does so for expanded
    results only.
    """
    from magpy_like.torch_compat.aot_autograd import MemoryFormatMeta

    choose, own = MemoryFormatMeta.from_tensor, threading.get_ident()

    def from_tensor(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        chosen = choose(t, *args, **kwargs)
        if threading.get_ident() != own or t.layout is not torch.strided:
            return chosen
        if chosen.memory_format is None and has_overlap(t):
            return MemoryFormatMeta(memory_format=torch.contiguous_format)
        return chosen

    MemoryFormatMeta.from_tensor = staticmethod(from_tensor)
    try:
        yield
    finally:
        MemoryFormatMeta.from_tensor = staticmethod(choose)


@contextlib.contextmanager
def dropout_of_all_draws_nothing() -> Iterator[None]:
    """Have torch trace ``dropout`` with a probability of 1 as a product with zero, as eager mode
    computes it, and not as ``native_dropout``, which draws random numbers.

    Applied while AOTAutograd runs, under the lock of tracing. *Seen* on torch 2.13.
    """
    operator = torch.ops.aten.dropout.default
    traced = {key: kernel for key, kernel in operator.py_kernels.items() if callable(kernel)}

    def as_eager(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
            if train and p == 1 and input.numel():
                return input * torch.zeros((), dtype=input.dtype, device=input.device)
            return kernel(input, p, train)

        return dropout

    operator.py_kernels.update({key: as_eager(kernel) for key, kernel in traced.items()})
    operator._dispatch_cache.clear()
    try:
        yield
    finally:
        operator.py_kernels.update(traced)
        operator._dispatch_cache.clear()


@contextlib.contextmanager
def lazy_unobserved_graphs() -> Iterator[None]:
    """Have torch make graph modules that the program's global hooks do not see, and that write
    their source when they are first called: printing it for every intermediate graph costs time.

    Applied while AOTAutograd runs, under the lock of tracing. *Seen* on torch 2.13.
    """
    choose = lazy_graph_module._get_graph_module_cls
    lazy_graph_module._get_graph_module_cls = lambda: UnobservedLazyGraphModule
    try:
        yield
    finally:
        lazy_graph_module._get_graph_module_cls = choose


class NotedDescribers:
    """Context that collects the describers which one thread makes.

    Each fake tensor mode has one; torch makes modes of its own when it traces. *Seen* on torch
    2.13.
    """

    def __init__(self) -> None:
        self.found: list[Any] = []

    def __enter__(self) -> None:
        cls, found, holder = meta_utils.MetaTensorDescriber, self.found, threading.get_ident()
        self._original = original = cls.__init__

        def init(describer: Any, **options: Any) -> None:
            original(describer, **options)
            if threading.get_ident() == holder:
                found.append(describer)

        cls.__init__ = init

    def __exit__(self, *exception: object) -> None:
        meta_utils.MetaTensorDescriber.__init__ = self._original


def forget_script_classes() -> None:
    """Forget all classes that ``torch.jit.script`` has compiled in this process.

    Programs of ParityBench define classes of equal names. Applied by ``paritybench_runner``
    between two of them; ``magpy_like`` does not call it. *Seen* on torch 2.13.
    """
    from torch.jit import _recursive, _state

    torch._C._jit_clear_class_registry()
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
    _state._clear_class_state()


_graph_source_lock = threading.Lock()
_graph_source_users = 0


@contextlib.contextmanager
def transient_graph_sources() -> Iterator[None]:
    """Have torch forget the source of a graph module's code with the code, in all threads, until
    the last one leaves.

    Torch keeps it for tracebacks, for good, and a program has several graphs in the course of its
    compilation. Applied while a record is made, and while torch traces. *Seen* on torch 2.13.
    """
    global _graph_source_users
    with _graph_source_lock:
        _graph_source_users += 1
        graph_module._exec_with_source = _exec_transient
    try:
        yield
    finally:
        with _graph_source_lock:
            _graph_source_users -= 1
            if _graph_source_users == 0:
                graph_module._exec_with_source = exec_graph_source


def _exec_transient(source: str, names: dict[str, Any], *rest: Any) -> None:
    earlier = set(map(id, names.values()))
    exec_graph_source(source, names, *rest)
    made = [value for value in names.values() if id(value) not in earlier]
    codes = [value.__code__ for value in made if type(value) is types.FunctionType]
    files = {code.co_filename for code in codes}
    if len(files) == 1 and (file := files.pop()).startswith("<eval_with_key>"):

        def forget() -> None:
            GRAPH_SOURCES.pop(file, None)
            linecache.cache.pop(file, None)

        _call_after_last(codes, forget)


# --- Triton ---------------------------------------------------------------------------------------

_ptx_lock = threading.Lock()
_ptx_users = 0
_previous_hook: Callable[..., Any] | None = None


@contextlib.contextmanager
def rewriting_ptx(rewrite: Callable[[str], str], name: str) -> Iterator[None]:
    """Have Triton assemble ``rewrite(ptx)``, in all threads, until the last one leaves.

    ``name`` becomes part of the key of Triton's cache. All callers pass the same function. Applied
    while a kernel is compiled (``compiler.runtime.ptx_repair`` has the reason). The hook of the
    program, if it has set one, is called first. *Seen* on Triton 3.6 and 3.7.
    """
    from triton import knobs

    global _ptx_users, _previous_hook
    with _ptx_lock:
        if _ptx_users == 0:
            _previous_hook = knobs.runtime.add_stages_inspection_hook
            knobs.runtime.add_stages_inspection_hook = functools.partial(_ptx_hook, rewrite, name)
        _ptx_users += 1
    try:
        yield
    finally:
        with _ptx_lock:
            _ptx_users -= 1
            if _ptx_users == 0:
                knobs.runtime.add_stages_inspection_hook = _previous_hook
                _previous_hook = None


def _ptx_hook(
    rewrite: Callable[[str], str], name: str, backend: Any = None, stages: Any = None, *rest: Any
) -> Any:
    """Triton (3.6 and later) passes its stages to be changed; 3.7 first queries (key, hash) of the
    hook's effect, for its cache."""
    if stages is None:
        key, digest = _previous_hook() if _previous_hook is not None else ("", "")
        return f"{key}{name}", f"{digest}{name}"
    if _previous_hook is not None:
        _previous_hook(backend, stages, *rest)
    make = stages.get("ptx")
    if make is not None:
        stages["ptx"] = lambda source, metadata: rewrite(make(source, metadata))
    return None


# --- Python ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage. Applied while annotations are loaded: they stay, so a collection takes
    longer than loading them and finds nothing. Applied while a CUDA graph is captured: a finaliser
    may call a CUDA function that ends the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_source_numbers = itertools.count()


def compile_source(name: str, text: str) -> types.CodeType:
    """The code of a generated module, whose lines ``linecache`` returns under ``<name number>``.

    Tracebacks show the lines, and Triton reads the source of a kernel there. The entry's
    modification time is None, so ``linecache.checkcache`` keeps it. It goes with the last function
    that the module defines: a function, a frame and a traceback each keep the code alive.
    """
    filename = f"<{name} {next(_source_numbers)}>"
    code = compile(text, filename, "exec")
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    _call_after_last(list(_nested_codes(code)), lambda: linecache.cache.pop(filename, None))
    return code


def _call_after_last(codes: Collection[types.CodeType], forget: Callable[[], object]) -> None:
    """Call ``forget`` when none of these code objects exists any more."""
    alive = [None] * len(codes)

    def forget_one() -> None:
        alive.pop()
        if not alive:
            forget()

    for code in codes:
        weakref.finalize(code, forget_one).atexit = False


def _nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested_codes(constant)

"""``compile_fx``: from an FX graph and example inputs to a fast callable."""

from __future__ import annotations

import copy
import ctypes
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import RestartAnalysis
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from magpy_like.compiler import describe, numbers, passes
from magpy_like.compiler.aot import aot_compile
from magpy_like.compiler.codegen import cpp, special, triton
from magpy_like.compiler.codegen.common import Kernel
from magpy_like.compiler.codegen.launcher import Launcher
from magpy_like.compiler.control import has_control, in_parts
from magpy_like.compiler.errors import CompileError, Unsupported, warn_fallback
from magpy_like.compiler.graph import Graph, assumptions, find_shape_env
from magpy_like.compiler.memory import plan_memory
from magpy_like.compiler.runtime import code_cache
from magpy_like.compiler.scheduler import Scheduler
from magpy_like.compiler.trace import Trace, open_trace

_OPTIONS = {"strict", "trace"}
KERNELS_PER_UNIT = 8


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile an FX graph of torch operators; the signature is a Dynamo backend's.

    ``example_inputs`` has a tensor (real or fake), symbolic or plain number per placeholder. The
    result is called with inputs of the same dtypes, devices, sizes and strides (for symbolic
    sizes: any that their guards admit); the caller guards that. ``options``: ``strict`` (bool,
    raise instead of running anything unsupported through ATen), ``trace`` (directory).

    What cannot be compiled runs through ATen, with one warning. Raises CompileError under
    ``strict``, and for unknown options. Source: PyTorch 2 (ASPLOS 2024), section 4.
    """
    if has_control(gm):
        return in_parts(gm, functools.partial(compile_fx, mode=mode, options=options))
    settings = dict(options or {})
    unknown = set(settings) - _OPTIONS
    if unknown:
        raise CompileError(f"unknown options {sorted(unknown)}; there are {sorted(_OPTIONS)}")
    strict = bool(settings.get("strict", False))
    trace = open_trace(settings)
    trace.write("fx", "graph.py", lambda: gm.print_readable(print_output=False))

    try:
        with trace.timing("compile"), torch.random.fork_rng(devices=[]):
            return _compile_captured(gm, example_inputs, strict, trace)
    except CompileError:
        raise
    except Exception as error:
        floats = {k: e for k, e in enumerate(example_inputs) if isinstance(e, torch.SymFloat)}
        if isinstance(error, RestartAnalysis) and TracingContext.try_get() is not None:
            raise  # Dynamo waits for it
        if isinstance(error, GuardOnDataDependentSymNode) and floats:
            known = {k: e.node.hint for k, e in floats.items()}
            if None not in known.values():
                baked = [known.get(k, e) for k, e in enumerate(example_inputs)]
                return numbers.only_for(known, compile_fx(gm, baked, options=options), gm)
        # A program that eager refuses is refused by eager, with eager's message, when it runs.
        warn_fallback("a graph", _first_line(error), strict=strict)
        return gm


def _compile_captured(
    captured: fx.GraphModule, example_inputs: Sequence[Any], strict: bool, trace: Trace
) -> Callable[..., Any]:
    """:func:`compile_fx` without its fallbacks."""
    assuming: list[fx.GraphModule] = []

    def stage(kind: str) -> Callable[..., Any]:
        def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            call = compile_aten(graph, kind=kind, strict=strict, trace=trace)
            if getattr(call, "assumes", False) and kind != "backward":
                assuming.append(graph)
            return call

        return compiler

    gm = fx.GraphModule(captured, copy.deepcopy(captured.graph))
    gm = passes.run_captured(gm, example_inputs)
    gm, restore = _flat_outputs(gm)
    examples, floats = numbers.floats_as_tensors(gm, example_inputs)

    def aot() -> Callable[..., Any]:
        return aot_compile(
            gm, examples,
            forward=stage("forward"), backward=stage("backward"), inference=stage("inference"),
        )  # fmt: skip

    try:
        call = aot()
    except RestartAnalysis:
        if TracingContext.try_get() is not None:
            raise
        call = aot()  # torch now knows which floats of the shape environment are no constants
    if floats:
        call = numbers.with_tensors(call, floats)
    if restore is not None:
        call = _then(call, restore)
    return numbers.or_eager(call, captured, assuming[0]) if assuming else call


def _flat_outputs(
    gm: fx.GraphModule,
) -> tuple[fx.GraphModule, Callable[[Any], Any] | None]:
    """The graph with a flat tuple of results, as AOTAutograd wants it, and the way back."""
    output = gm.graph.output_node()
    leaves, structure = pytree.tree_flatten(output.args[0])
    if isinstance(output.args[0], tuple) and len(leaves) == len(output.args[0]):
        return gm, None
    output.args = (tuple(leaves),)
    gm.recompile()
    return gm, lambda results: pytree.tree_unflatten(list(results), structure)


def _then(call: Callable[..., Any], restore: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args: restore(call(*args))


def compile_aten(
    gm: fx.GraphModule, *, kind: str, strict: bool, trace: Trace
) -> Callable[[list[Any]], Any]:
    """Compile one functional ATen graph (``kind``: forward, backward, inference).

    The result takes one list of arguments, which it empties, and returns a tuple.
    """
    try:
        with _disable_current_modes():  # constants are folded for real, not as fake tensors
            call = _compile(gm, kind, trace)
    except Unsupported as reason:
        warn_fallback(reason.what, reason.reason, strict=strict)
        call = _through_aten(gm, kind)
    except code_cache.NoCompilerError as error:
        warn_fallback("every graph", str(error), strict=strict)
        call = _through_aten(gm, kind)
    except Exception as error:  # never a crash: a compiler bug costs speed and a warning
        warn_fallback(f"a {kind} graph", _first_line(error), strict=strict)
        call = _through_aten(gm, kind)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _first_line(error: Exception) -> str:
    if isinstance(error, code_cache.CppCompileError):
        wrong = [s for s in error.diagnostics.splitlines() if "error" in s]
        return f"the C++ compiler refused its kernels: {wrong[0] if wrong else error.diagnostics}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _through_aten(gm: fx.GraphModule, kind: str) -> Callable[[list[Any]], Any]:
    """:func:`interpret`; raises Unsupported where only the captured graph holds for every call."""
    if kind != "backward" and assumptions(find_shape_env(gm)):
        raise Unsupported("a graph", "its sizes are read from tensors")
    return interpret(gm)


def interpret(gm: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The graph through ATen, operator by operator."""

    def call(args: list[Any]) -> Any:
        taken = list(args)
        args.clear()
        with torch.no_grad():
            return gm(*taken)

    return call


def _compile(gm: fx.GraphModule, kind: str, trace: Trace) -> Callable[[list[Any]], Any]:
    stage = "aten_backward" if kind == "backward" else "aten_forward"
    trace.write(stage, f"{kind}.py", lambda: gm.print_readable(print_output=False))
    with trace.timing("passes"):
        gm = passes.run(gm, inference=kind == "inference")
    trace.write("passes", f"{kind}.py", lambda: gm.print_readable(print_output=False))
    with trace.timing("lowering"):
        graph = Graph(gm).run()
    trace.write("ir", f"{kind}.txt", lambda: describe.graph(graph))
    with trace.timing("scheduling"):
        schedule = Scheduler(graph).run()
        for work in schedule.steps:
            if isinstance(work, Kernel) and work.device.type in PRINTERS:
                PRINTERS[work.device.type].settle(work, graph.hint)
        steps = plan_memory(graph, schedule)
    trace.write("schedule", f"{kind}.txt", lambda: describe.schedule(schedule))
    kernels = [step.work for step in steps if isinstance(step.work, Kernel)]
    launcher = Launcher(graph, steps)
    source = launcher.print()
    with trace.timing("kernels"):
        launcher.namespace |= build(kernels, graph, kind, trace)
    trace.write("launcher", f"{kind}.py", source)
    call = launcher.compile(source)
    call.assumes = launcher.assumes  # type: ignore[attr-defined]
    return call


def build(
    kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace
) -> dict[str, Callable[..., Any]]:
    """Print, compile and load kernels: name -> function of addresses and sizes."""
    by_device: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_device.setdefault(kernel.device.type, []).append(kernel)
    found: dict[str, Callable[..., Any]] = {}
    for device, part in by_device.items():
        if device not in PRINTERS:
            raise Unsupported("a graph", f"no printer for device {device}")
        found |= PRINTERS[device].build(part, graph, kind, trace)
    return found


def build_cpp(
    kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace
) -> dict[str, Callable[..., Any]]:
    """:func:`build` for the CPU."""
    names: dict[str, str] = {}  # text -> function; kernels of one text share it
    origins: dict[str, list[str]] = {}
    entry: dict[str, str] = {}
    for kernel in kernels:
        text = cpp.print_function(kernel, graph.hint)
        function = entry[kernel.name] = names.setdefault(text, kernel.name)
        origins.setdefault(function, []).extend(kernel.origins)
    functions = [(name, text, origins[name]) for text, name in names.items()]
    count = -(-len(functions) // KERNELS_PER_UNIT)
    count = min(count, len(os.sched_getaffinity(0)))
    units = [functions[n::count] for n in range(count)]
    if any(special.uses_special(text) for text in names):
        special.load_special()
    sources = [
        code_cache.CppSource(
            cpp.print_unit(unit), f"magpy_{kind}", cpp.FLAGS, {"cpp_prelude.h": cpp.PRELUDE}
        )
        for unit in units
    ]
    for source in sources:
        trace.write("kernels", f"{kind}.cpp", source.source)
    found: dict[str, Callable[..., Any]] = {}
    for path, unit in zip(code_cache.compile_cpp_many(sources), units, strict=True):
        found |= load(path, [name for name, *_ in unit])
    return {name: found[function] for name, function in entry.items()}


def load(path: Any, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The entries of a translation unit as Python functions, through CPython's stable interface:
    calling one costs what calling a built-in costs."""
    library = code_cache.load_library(path)
    table = ctypes.addressof(ctypes.c_char.in_dll(library, "magpy_kernels"))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    make.restype = ctypes.py_object
    size = 4 * ctypes.sizeof(ctypes.c_void_p)  # a PyMethodDef
    return {name: make(table + k * size, None, None) for k, name in enumerate(names)}


@dataclass(frozen=True)
class Printer:
    """A printer: ``settle(kernel, hint)`` may change a plan before memory is planned, ``build``
    prints, compiles and loads (see :func:`build`)."""

    settle: Callable[[Kernel, Callable[[Any], int]], None]
    build: Callable[..., dict[str, Callable[..., Any]]]


#: Device type -> the printer for its kernels.
PRINTERS = {
    "cpu": Printer(lambda kernel, hint: None, build_cpp),
    "cuda": Printer(triton.settle, triton.build),
}

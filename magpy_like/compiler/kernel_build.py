"""Kernels and launcher as a callable: printed, compiled and loaded, or found in the disk cache."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, fx

from magpy_like.compile_modes import CudaGraphs
from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.codegen.cpp import cpp_printer, cpp_special_functions
from magpy_like.compiler.codegen.launcher import COMMON, Launcher, define
from magpy_like.compiler.codegen.launcher_pieces import split_into_pieces
from magpy_like.compiler.codegen.triton import triton_printer
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.runtime import (
    captured_graph_cache,
    compiled_graph_cache,
    huge_pages,
    triton_launch,
)
from magpy_like.compiler.runtime.compiled_graph_cache import CompiledGraph
from magpy_like.compiler.runtime.cuda_graphs.capture_reports import report_pieces
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import GraphFacts, Lines, source_lines
from magpy_like.compiler.runtime.cuda_graphs.graphed_launcher import GraphedLauncher
from magpy_like.compiler.runtime.profiled_launchers import ProfiledLauncher, StepOrigins
from magpy_like.compiler.stage_trace import Trace
from magpy_like.disk_cache import cpp_compiler
from magpy_like.graph_operators.node_origins import OriginalNodes
from magpy_like.native import helper_status
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule

CHARACTERS_PER_UNIT = 20_000
"""C++ source per compiler process: starting one takes about as long as compiling this much."""

Call = Callable[[list[Any]], Any]
Functions = dict[str, Callable[..., Any]]  # kernel -> function of addresses, sizes and numbers


def adapt_plan(kernel: Kernel, graph: Graph) -> None:
    """Let the printer of the kernel's device change its plan.

    Raises:
        Unsupported: there is no printer for the device.
    """
    if kernel.device.type not in PRINTERS:
        known = " and ".join(PRINTERS)
        reason = f"it runs on {kernel.device.type}; kernels are compiled for {known} only"
        raise Unsupported("a graph", reason)
    PRINTERS[kernel.device.type].adapt_plan(kernel, graph.hint)


def key(gm: fx.GraphModule, kind: str, trace: Trace) -> str | None:
    """The graph's key in the disk cache; None where it cannot be cached, or every stage must run
    because somebody reads the trace."""
    if trace.is_watched() or PRINTERS["cpu"].build is not build_cpp:
        return None
    return compiled_graph_cache.key(gm, kind)


def build(
    launcher: Launcher, kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace,
    key: str | None, facts: GraphFacts, graphs: CudaGraphs, lines: Lines, nodes: OriginalNodes,
) -> Call:  # fmt: skip
    """Print, compile and load the kernels and the launcher, and cache them under ``key``.

    ``kind`` is "forward", "backward" or "inference". The callable takes one list of arguments,
    which it empties, and returns a tuple. ``lines``: see :func:`source_lines`. ``nodes``: those of
    the graph before any pass.
    """
    source = launcher.print()
    compiled = CompiledGraph(source, launcher.assumes, **asdict(facts))
    compiled.steps = _step_origins(launcher, nodes)
    if facts.gpu is not None and facts.obstacle is not None:
        pieces = split_into_pieces(source, launcher.step_lines)
        if pieces is not None:
            compiled.pieces = pieces.source
            compiled.lendable_of_pieces = [*map(list, pieces.lendable)]
            compiled.written_by_pieces = [*map(list, pieces.written)]
    functions: Functions = {}
    for device in dict.fromkeys(k.device.type for k in kernels):
        part = [k for k in kernels if k.device.type == device]
        with trace.timing("kernels"):
            if PRINTERS[device].build is build_cpp:
                functions |= _build_units(compiled, part, graph, kind, trace)
            elif PRINTERS[device].build is triton_printer.build:
                wanted, compiled.triton_indices = triton_printer.print_kernels(
                    part, graph, kind, trace
                )
                compiled.triton_kernels = [triton_launch.serialize(w) for w in wanted]
                functions |= _load_gpu(compiled, wanted)
            else:
                functions |= PRINTERS[device].build(part, graph, kind, trace)
                key = None
    trace.write("launcher", f"{kind}.py", source)
    call = _call(compiled, launcher.namespace | functions, graphs, lines, nodes)
    if key is not None and _store(compiled, launcher, graph, key) and not compiled.attributes:
        call.entry = key  # type: ignore[attr-defined]
    return call


def find(key: str, gm: fx.GraphModule, kind: str, graphs: CudaGraphs) -> Call | None:
    """The callable that :func:`build` cached under ``key``, in this or another process, or None."""
    compiled = compiled_graph_cache.get(key)
    if compiled is None:
        return None
    names = compiled.objects(gm) | _load(compiled, kind)
    lines = source_lines(gm) if compiled.obstacle else {}
    call = _call(compiled, names, graphs, lines, OriginalNodes(gm))
    if not compiled.attributes:
        call.entry = key  # type: ignore[attr-defined]
    return call


def find_captured(key: str, gm: fx.GraphModule, graphs: CudaGraphs) -> Call | None:
    """The inference callable cached for a captured graph, by this or another process, or None.

    Only a graph that refers to no parameters or constants and assumes nothing can be found.
    """
    compiled = captured_graph_cache.get(key)
    if compiled is None or compiled.attributes or compiled.assumes:
        return None
    empty = UnobservedGraphModule({}, fx.Graph())
    names = compiled.objects(empty) | _load(compiled, "inference")
    lines = source_lines(gm) if compiled.obstacle else {}
    return _call(compiled, names, graphs, lines, OriginalNodes(gm))


def _step_origins(launcher: Launcher, nodes: OriginalNodes) -> list[StepOrigins]:
    """The nodes of the graph before any pass that each step of a printed launcher computes."""
    found = []
    for step, lines in zip(launcher.steps, launcher.step_lines, strict=True):
        work = step.work
        origins = [] if work is None else [launcher.graph.origins[name] for name in work.origins]
        indices = dict.fromkeys(map(nodes.index, origins))
        of_kernel = (f"{work.name}(", work.title) if isinstance(work, Kernel) else ("", "")
        computed = [index for index in indices if index is not None]
        found.append(StepOrigins(lines.first, lines.last, *of_kernel, computed))
    return found


def _call(
    compiled: CompiledGraph, names: dict[str, Any], graphs: CudaGraphs, lines: Lines,
    nodes: OriginalNodes,
) -> Call:  # fmt: skip
    namespace = {**COMMON, **names}
    call: Any = define(compiled.launcher, namespace)
    profiled = ProfiledLauncher(call, compiled.launcher, compiled.steps, nodes)
    facts = compiled.facts()
    replays = compiled.gpu is not None and graphs is not CudaGraphs.NEVER
    if replays and helper_status.obstacle() is None:
        constants = {t.untyped_storage()._cdata for t in names.values() if isinstance(t, Tensor)}
        if compiled.pieces:
            call = _launch_in_pieces(compiled, namespace, graphs, constants, lines)
        else:
            call = GraphedLauncher(call, facts.located(lines), graphs, constants)
    else:
        call.gpu = compiled.gpu
    call.assumes, call.obstacle_line = compiled.assumes, facts.line(lines)
    call.profiled = profiled
    return call


def _launch_in_pieces(
    compiled: CompiledGraph, names: dict[str, Any], graphs: CudaGraphs, constants: set[int],
    lines: Lines,
) -> Call:  # fmt: skip
    """The launcher whose pieces are CUDA graphs, and whose other steps are not."""
    call: Any = define(compiled.pieces, names)
    pieces = []
    both = zip(compiled.lendable_of_pieces, compiled.written_by_pieces, strict=True)
    for k, (lendable, written) in enumerate(both):
        facts = replace(compiled.facts(), obstacle=None, lendable=tuple(lendable))
        name = f"piece_{k}"
        names[name] = GraphedLauncher(names[name], facts, graphs, constants, written)
        pieces.append(names[name])
    call.gpu = compiled.gpu
    call.report = functools.partial(report_pieces, compiled.facts().located(lines).obstacle, pieces)
    return call


def _store(compiled: CompiledGraph, launcher: Launcher, graph: Graph, key: str) -> bool:
    """Cache the compiled graph on disk; False if it refers to an object that cannot be named."""
    for name, target in graph.attributes.items():
        if target is None:
            compiled.folded_constants[name] = compiled_graph_cache.serialize_tensor(
                graph.constants[name]
            )
        else:
            compiled.attributes[name] = target
    try:
        for name, value in launcher.namespace.items():
            if name not in graph.constants and COMMON.get(name) is not value:
                compiled.names[name] = compiled_graph_cache.describe_object(value)
    except compiled_graph_cache.NotCacheable:
        return False
    compiled_graph_cache.put(key, compiled)
    return True


def _load(compiled: CompiledGraph, kind: str) -> Functions:
    wanted = [triton_launch.deserialize(text) for text in compiled.triton_kernels]
    return _load_units(compiled, kind) | _load_gpu(compiled, wanted)


def _load_gpu(compiled: CompiledGraph, wanted: Sequence[triton_launch.CompileRequest]) -> Functions:
    functions = triton_launch.load_many(wanted) if wanted else []
    return {kernel: functions[place] for kernel, place in compiled.triton_indices.items()}


def build_cpp(kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace) -> Functions:
    """Print, compile and load kernels for the CPU."""
    return _build_units(CompiledGraph("", False), kernels, graph, kind, trace)


def _build_units(
    compiled: CompiledGraph, kernels: Sequence[Kernel], graph: Graph, kind: str, trace: Trace
) -> Functions:
    _print_units(compiled, kernels, graph)
    for text, _ in compiled.units:
        trace.write("kernels", f"{kind}.cpp", text)
    return _load_units(compiled, kind)


def _print_units(compiled: CompiledGraph, kernels: Sequence[Kernel], graph: Graph) -> None:
    names: dict[str, str] = {}  # text -> function; kernels of one text share it
    origins: dict[str, list[str]] = {}
    for kernel in kernels:
        text = cpp_printer.print_function(kernel, graph.hint)
        function = compiled.functions[kernel.name] = names.setdefault(text, kernel.name)
        origins.setdefault(function, []).extend(kernel.origins)
    functions = [(name, text, origins[name]) for text, name in names.items()]
    for unit in _balance_units(functions):
        compiled.units.append((cpp_printer.print_unit(unit), [name for name, *_ in unit]))


_CppFunction = tuple[str, str, list[str]]
"""(name, text, origins)"""


def _balance_units(functions: list[_CppFunction]) -> list[list[_CppFunction]]:
    """The functions as translation units of about equal text, at most one per processor."""
    total = sum(len(text) for _, text, _ in functions)
    count = min(-(-total // CHARACTERS_PER_UNIT), len(os.sched_getaffinity(0)), len(functions))
    units: list[list[_CppFunction]] = [[] for _ in range(count)]
    sizes = [0] * count
    for function in sorted(functions, key=lambda f: len(f[1]), reverse=True):
        smallest = sizes.index(min(sizes))
        units[smallest].append(function)
        sizes[smallest] += len(function[1])
    return units


def _load_units(compiled: CompiledGraph, kind: str) -> Functions:
    """Compile the units, or find them compiled, and load: kernel -> function of addresses and
    sizes."""
    if any(cpp_special_functions.uses_special(text) for text, _ in compiled.units):
        cpp_special_functions.load_special()
    headers = {"cpp_prelude.h": cpp_printer.PRELUDE}
    sources = [
        cpp_compiler.CppSource(text, f"magpy_{kind}", cpp_printer.FLAGS, headers)
        for text, _ in compiled.units
    ]
    huge_pages.keep_freed_memory()
    found: Functions = {}
    paths = cpp_compiler.compile_cpp_many(sources)
    for path, (_, names) in zip(paths, compiled.units, strict=True):
        found |= cpp_compiler.load_functions(path, names)
    return {kernel: found[function] for kernel, function in compiled.functions.items()}


@dataclass(frozen=True)
class Printer:
    """The backend of a device type: ``adapt_plan(kernel, hint)`` may change a kernel's plan before
    memory is planned; ``build(kernels, graph, kind, trace)`` prints, compiles and loads."""

    adapt_plan: Callable[[Kernel, Callable[[Any], int]], None]
    build: Callable[..., Functions]


#: Device type -> the printer for its kernels.
PRINTERS = {
    "cpu": Printer(lambda kernel, hint: None, build_cpp),
    "cuda": Printer(triton_printer.adapt_plan, triton_printer.build),
}

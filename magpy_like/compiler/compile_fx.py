"""``compile_fx``: from a captured FX graph and example inputs to a fast callable.

The whole pipeline of PyTorch 2, section 4, in one file: passes over the captured graph,
AOTAutograd, and for each ATen graph passes, lowering, scheduling, printing. A stage that fails
falls back to ATen with one warning.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from magpy_like.compile_modes import CompileSettings, CudaGraphs, compile_settings
from magpy_like.compiler import ir_text, kernel_build, passes, runtime_scalars
from magpy_like.compiler.autograd.aot import aot_compile, interpret, without_grad
from magpy_like.compiler.autograd.backward_streams import gpus_of, on_default_streams
from magpy_like.compiler.autograd.captured_program import program_as_captured, results_as_captured
from magpy_like.compiler.autograd.gradient_modes import find_gradient_modes
from magpy_like.compiler.autograd.overwritten_saved_values import may_overwrite_saved_tensors
from magpy_like.compiler.autograd.saved_values import saved_tensor_indices
from magpy_like.compiler.codegen.capture_obstacles import find_obstacles, graph_facts
from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.codegen.launcher import Launcher
from magpy_like.compiler.compiler_errors import CompileError, Unsupported, warn_fallback
from magpy_like.compiler.float_arithmetic import compute_floats_in_tensors
from magpy_like.compiler.graph_partition import compile_in_parts, make_interpreter
from magpy_like.compiler.lowering.aten_graph_properties import assumptions, find_shape_env
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.running_statistics import (
    copy_for_evaluation,
    find_uncounted,
    keep_versions,
)
from magpy_like.compiler.runtime import captured_graph_cache
from magpy_like.compiler.runtime.cuda_graphs.capture_reports import collected_launchers
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import find_line, source_lines
from magpy_like.compiler.runtime.profiled_launchers import ProfiledLauncher, show_all
from magpy_like.compiler.scheduling.memory_planning import plan_memory
from magpy_like.compiler.scheduling.scheduler import Scheduler
from magpy_like.compiler.stage_trace import Trace, open_trace
from magpy_like.compiler.trailing_views import take_trailing_views
from magpy_like.compiler.unbacked_symbols import DATA_DEPENDENT_ERRORS, make_sizes_symbolic
from magpy_like.compiler.version_counters import (
    count_further_writes,
    find_further_writes,
    find_result_versions,
    find_uncounted_inputs,
    set_result_versions,
)
from magpy_like.disk_cache import cpp_compiler
from magpy_like.graph_operators.checkpoint_batch_norm import StatisticsUpdateUnsupported
from magpy_like.graph_operators.checkpoint_operator import (
    inline_checkpoints,
    mark_eager_checkpoints,
)
from magpy_like.graph_operators.control_operators import has_parts
from magpy_like.graph_operators.node_metadata import RESULT_VERSIONS, first_line_of, line_of_error
from magpy_like.graph_operators.node_origins import OriginalNodes, number_nodes
from magpy_like.graph_operators.profiled_graphs import interpreted, regions_of, show_regions
from magpy_like.interruption import is_interruption
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.dispatch import disable_current_modes
from magpy_like.torch_compat.dynamo import RestartAnalysis
from magpy_like.torch_compat.functorch import is_under_transform
from magpy_like.torch_compat.profiler import is_profiled
from magpy_like.torch_compat.tracing.tracing_context import TracingContext
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedLazyGraphModule
from magpy_like.torch_interop.current_gpu import has_current_gpu_calls, tracing_without_cache
from magpy_like.torch_interop.error_texts import in_words
from magpy_like.torch_interop.saved_tensor_hooks import without_saved_tensor_hooks
from magpy_like.torch_interop.symbols import is_symbolic
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK


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
    raise instead of running anything unsupported through ATen), ``trace`` (directory),
    ``cuda_graphs`` (bool); ``mode``: see :mod:`magpy_like.compile_modes`.

    A graph or operator that cannot be compiled runs through ATen, with one warning.

    Raises:
        CompileError: under ``strict``, instead of a fallback.
        ValueError: the mode or an option is unknown, or has an unsuitable value.

    Source: PyTorch 2 (ASPLOS 2024), section 4.
    """
    call = compile_untransformed(gm, example_inputs, mode=mode, options=options)
    return _eager_under_transforms(call, make_interpreter(gm))


def _eager_under_transforms(
    call: Callable[..., Any], captured: Callable[..., Any]
) -> Callable[..., Any]:
    """``call``; ``captured`` while a level of forward-mode AD is open or a functorch transform is
    active. Kernels see neither the tangent of a tensor nor the tensor that a transform wraps."""

    def run(*args: Any) -> Any:
        if is_under_transform():
            return captured(*args)
        if is_profiled():
            show_all()
        return call(*args)

    return run


@without_saved_tensor_hooks()
def compile_untransformed(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """:func:`compile_fx` for callers that call the result neither under functorch's transforms nor
    in a level of forward-mode AD: the result does not check for them."""
    if not has_parts(gm) and (modes := find_gradient_modes(gm, example_inputs)) is not None:
        with torch.set_grad_enabled(modes.entry):
            return modes.enter(_compile_entered(modes.graph, example_inputs, mode, options))
    return _compile_entered(gm, example_inputs, mode, options)


def _compile_entered(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    mode: str | None,
    options: Mapping[str, Any] | None,
) -> Callable[..., Any]:
    """:func:`compile_untransformed` in the gradient mode in which the graph is called."""
    settings = compile_settings(mode, options)
    if has_parts(gm):
        varying = [is_symbolic(example) for example in example_inputs]
        compile_part = functools.partial(compile_untransformed, mode=mode, options=options)
        return compile_in_parts(
            gm, compile_part, varying, eager_with_gradients=may_overwrite_saved_tensors(gm)
        )
    strict = settings.strict
    unusual = next(filter(None, map(_describe_unusual, _input_tensors(gm, example_inputs))), None)
    if unusual is not None:
        why = f"one of its tensors is {unusual}"
        warn_fallback("a graph", why, strict=strict, line=first_line_of(gm))
        return interpreted(gm)
    trace = open_trace(options or {})
    trace.write("fx", "graph.py", lambda: gm.print_readable(print_output=False))

    try:
        lock = tracing_without_cache() if has_current_gpu_calls(gm) else TRACING_LOCK
        with lock, trace.timing("compile"), torch.random.fork_rng(devices=[]):
            try:
                return _compile_captured(gm, example_inputs, settings, trace)
            except DATA_DEPENDENT_ERRORS:
                if (symbolic := make_sizes_symbolic(gm, example_inputs)) is None:
                    raise
                return _compile_captured(*symbolic, settings, trace)
    except CompileError:
        raise
    except StatisticsUpdateUnsupported:
        mark_eager_checkpoints(gm, inlines=False)
        return compile_untransformed(gm, example_inputs, mode=mode, options=options)
    except Exception as error:
        if is_interruption(error):
            raise
        floats = {k: e for k, e in enumerate(example_inputs) if isinstance(e, torch.SymFloat)}
        if isinstance(error, RestartAnalysis) and TracingContext.try_get() is not None:
            raise  # Dynamo handles it
        if isinstance(error, GuardOnDataDependentSymNode) and floats:
            values = {k: e.node.hint for k, e in floats.items()}
            if None not in values.values():
                constants = [values.get(k, e) for k, e in enumerate(example_inputs)]
                call = compile_untransformed(gm, constants, mode=mode, options=options)
                return runtime_scalars.guard_float_values(values, call, gm)
        # If the program itself is wrong, eager raises its own error when the graph runs.
        line = line_of_error(error) or first_line_of(gm)
        warn_fallback("a graph", _first_line(error), strict=strict, line=line)
        return interpreted(gm)  # the module's own call prints errors


def _input_tensors(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors that enter a graph: arguments, parameters, buffers, constants."""
    attributes = (operator.attrgetter(n.target)(gm) for n in gm.graph.nodes if n.op == "get_attr")
    return (t for t in (*example_inputs, *attributes) if isinstance(t, torch.Tensor))


def _describe_unusual(tensor: torch.Tensor) -> str | None:
    """The tensor's storage format as text, if no loop over strides can read it; else None."""
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantised"
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}"
    return None


def _compile_captured(
    captured: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: CompileSettings,
    trace: Trace,
) -> Callable[..., Any]:
    """:func:`compile_fx` without its fallbacks."""
    with_assumptions: list[fx.GraphModule] = []
    gpus: set[int] = set()
    launchers = collected_launchers()
    number_nodes(captured.graph)
    in_profiles = launchers.name_graph(captured)

    def stage(kind: str) -> Callable[..., Any]:
        def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            call = compile_aten(
                graph, kind=kind, strict=settings.strict, trace=trace, graphs=settings.cuda_graphs
            )
            launchers.add(call, kind)
            in_profiles.describe(call, kind)
            if getattr(call, "assumes", False) and kind != "backward":
                with_assumptions.append(graph)
            if kind == "forward":
                gpus.update(gpus_of(graph))
            return call

        return compiler

    key = None if trace.is_watched() else captured_graph_cache.key(captured, example_inputs)
    whole = inline_checkpoints(captured)
    # Its source is never run.
    gm = UnobservedLazyGraphModule(whole, copy.deepcopy(whole.graph))
    cached = (
        kernel_build.find_captured(key, captured, settings.cuda_graphs) if key is not None else None
    )
    views = take_trailing_views(gm, example_inputs)
    if views is not None and views.are_all and TracingContext.try_get() is None:
        return show_regions(views.alone(), regions_of(captured))

    def count_as_eager(call: Callable[..., Any]) -> Callable[..., Any]:
        call = keep_versions(call, [*find_uncounted(whole), *find_uncounted_inputs(captured)])
        call = set_result_versions(call, find_result_versions(captured))
        call = count_further_writes(call, find_further_writes(captured))
        return passes.leave_detached_views_to_eager(call, captured, interpreted(captured))

    if cached is not None:
        launchers.add(cached, "inference")
        in_profiles.describe(cached, "inference")
        _, restore, _ = _flatten_outputs(gm)
        call = without_grad(cached)
        call = call if restore is None else _then(call, restore)
        return count_as_eager(call if views is None else views.after(call))
    results = results_as_captured(whole, gm)
    copy_for_evaluation(gm, example_inputs)
    gm = passes.run_captured(gm, example_inputs)
    gm, restore, kept = _flatten_outputs(gm)
    examples, sizes = runtime_scalars.pass_sizes_as_arguments(gm, example_inputs)
    examples, floats = runtime_scalars.read_floats_from_tensors(gm, examples)
    compute_floats_in_tensors(gm, examples)
    program = None
    if results is not None:
        program = program_as_captured(whole, [results[k] for k in kept], floats)

    def aot() -> Callable[..., Any]:
        return aot_compile(
            gm, examples, program=program,
            forward=stage("forward"), backward=stage("backward"), inference=stage("inference"),
        )  # fmt: skip

    try:
        call = aot()
    except RestartAnalysis:
        if TracingContext.try_get() is not None:
            raise
        call = aot()  # torch has learnt which floats of the shape environment are no constants
    if key is not None and (entry := getattr(call, "captured_entry", None)) is not None:
        line = call.obstacle_line  # type: ignore[attr-defined]
        profiled: ProfiledLauncher = call.profiled  # type: ignore[attr-defined]
        nodes = profiled.captured_nodes()
        captured_graph_cache.put(key, entry, find_line(captured, line), nodes)
    if floats:
        call = runtime_scalars.convert_floats(call, floats)
    if sizes:
        call = runtime_scalars.append_sizes(call, sizes)
    if restore is not None:
        call = _then(call, restore)
    if views is not None:
        call = views.after(call)
    if len(gpus) > 1:
        call = on_default_streams(call, interpreted(captured), gpus)
    call = count_as_eager(call)
    # ``interpreted``: calling the module itself prints errors.
    return (
        runtime_scalars.fall_back_on_failed_assumption(
            call, interpreted(captured), with_assumptions[0]
        )
        if with_assumptions
        else call
    )


def _flatten_outputs(
    gm: fx.GraphModule,
) -> tuple[fx.GraphModule, Callable[[Any], Any] | None, list[int]]:
    """The graph with a flat tuple of results, as AOTAutograd requires, each object once.

    Also returns the function that restores the original structure, None if nothing changed, and the
    position of each result among the original ones.
    """
    output = gm.graph.output_node()
    returned = output.args[0]
    leaves, structure = pytree.tree_flatten(returned)
    positions: dict[Any, int] = {}  # identity of a result -> its position in the flat tuple
    of = [positions.setdefault(_identity(leaf, k), len(positions)) for k, leaf in enumerate(leaves)]
    kept = [of.index(k) for k in range(len(positions))]
    if len(positions) == len(leaves) and isinstance(returned, tuple):
        if all(map(pytree.tree_is_leaf, returned)):
            return gm, None, kept
    output.args = (tuple(leaves[k] for k in kept),)
    if (versions := output.meta.get(RESULT_VERSIONS)) is not None:
        output.meta[RESULT_VERSIONS] = tuple(versions[k] for k in kept)
    gm.recompile()
    return gm, lambda results: pytree.tree_unflatten([results[k] for k in of], structure), kept


def _identity(leaf: Any, index: int) -> Any:
    """A key equal for results that are one object; constants are all distinct."""
    return passes.find_returned_object(leaf) if isinstance(leaf, fx.Node) else index


def _then(call: Callable[..., Any], restore: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args: restore(call(*args))


def compile_aten(
    gm: fx.GraphModule,
    *,
    kind: str,
    strict: bool,
    trace: Trace,
    graphs: CudaGraphs = CudaGraphs.NEVER,
) -> Callable[[list[Any]], Any]:
    """Compile one functional ATen graph (``kind``: forward, backward, inference).

    The result takes one list of arguments, which it empties, and returns a tuple.
    """
    try:
        with disable_current_modes():  # constants are folded for real, not as fake tensors
            call = _compile(gm, kind, trace, graphs)
    except Unsupported as reason:
        line = first_line_of(gm, reason.subject)
        warn_fallback(reason.subject, reason.reason, strict=strict, line=line)
        call = _interpret_if_possible(gm, kind)
    except cpp_compiler.NoCompilerError as error:
        warn_fallback("every graph", str(error), strict=strict)
        call = _interpret_if_possible(gm, kind)
    except Exception as error:  # never a crash: a compiler bug costs speed and a warning
        if is_interruption(error):
            raise
        warn_fallback(f"a {kind} graph", _first_line(error), strict=strict, line=first_line_of(gm))
        call = _interpret_if_possible(gm, kind)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _first_line(error: Exception) -> str:
    """The reason of a fallback as text: the first line of an error, or of its compiler's error."""
    if isinstance(error, Unsupported):
        # Not the error's text: `fx.Interpreter` appends the node and a traceback to it.
        is_graph = error.subject == "a graph"
        return error.reason if is_graph else f"{error.subject}: {error.reason}"
    if isinstance(error, cpp_compiler.CppCompileError):
        return error.summary
    return in_words(error)


def _interpret_if_possible(gm: fx.GraphModule, kind: str) -> Callable[[list[Any]], Any]:
    """:func:`interpret`.

    Raises:
        Unsupported: the ATen graph assumes values read from tensors, and nothing would check them;
            only the captured graph is right for every call.
    """
    if kind != "backward" and assumptions(find_shape_env(gm)):
        raise Unsupported("a graph", "its sizes are read from tensors")
    return interpret(gm)


def _compile(
    gm: fx.GraphModule, kind: str, trace: Trace, graphs: CudaGraphs
) -> Callable[[list[Any]], Any]:
    key = kernel_build.key(gm, kind, trace)
    cached = None if key is None else kernel_build.find(key, gm, kind, graphs)
    if cached is not None:
        return cached
    stage = "aten_backward" if kind == "backward" else "aten_forward"
    trace.write(stage, f"{kind}.py", lambda: gm.print_readable(print_output=False))
    output = gm.graph.output_node()
    results, saved = list(output.args[0]), {*saved_tensor_indices(output)}
    lines, nodes = source_lines(gm), OriginalNodes(gm)
    with trace.timing("passes"):
        gm = passes.run(gm, inference=kind == "inference")
    trace.write("passes", f"{kind}.py", lambda: gm.print_readable(print_output=False))
    with trace.timing("lowering"):
        graph = Graph(gm, backward=kind == "backward").run()
        graph.results, graph.saved = results, saved
    if kind == "backward":  # the forward pass has checked the assumptions
        graph.assumed = assumptions(graph.shape_env)
    trace.write("ir", f"{kind}.txt", lambda: ir_text.format_graph(graph))
    with trace.timing("scheduling"):
        schedule = Scheduler(graph).run()
        for work in schedule.steps:
            if isinstance(work, Kernel):
                kernel_build.adapt_plan(work, graph)
        steps = plan_memory(graph, schedule)
    trace.write("schedule", f"{kind}.txt", lambda: ir_text.format_schedule(schedule))
    kernels = [step.work for step in steps if isinstance(step.work, Kernel)]
    obstacles = find_obstacles(graph, steps)
    facts = graph_facts(graph, steps, obstacles, kind, lines)
    return kernel_build.build(
        Launcher(graph, steps, obstacles), kernels, graph, kind, trace, key, facts, graphs, lines,
        nodes,
    )  # fmt: skip

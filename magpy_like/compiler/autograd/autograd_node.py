"""The node of autograd's graph around a compiled forward and backward pass.

AOTAutograd's own node runs some twenty Python functions at each call, for all features that a
program may use: modified arguments, views of them as results, saved numbers, tensor subclasses.
*Measured* for a linear layer of 16 by 16: 23 µs of a forward call, of which autograd itself needs
4. If AOTAutograd's metadata show that a program uses none of them, the node of this module runs the
two passes only. Every other program keeps AOTAutograd's node.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from magpy_like.compiler.autograd.absent_gradients import (
    AbsentGradients,
    skip_unreached_functions,
    tangents,
)
from magpy_like.compiler.autograd.double_backward import (
    SecondRun,
    call_once_differentiable,
    has_tangents,
    make_once_differentiable,
    save_call_arguments,
)
from magpy_like.compiler.autograd.unread_saved_tensors import SavedTensors
from magpy_like.compiler.runtime.profiled_launchers import show_all
from magpy_like.compiler.version_counters import not_view
from magpy_like.graph_operators.checkpoint_batch_norm import (
    CheckpointStatistics,
    find_executed_inputs,
)
from magpy_like.interruption import call_uninterrupted
from magpy_like.torch_compat.aot_autograd import PlainAOTOutput
from magpy_like.torch_compat.autograd import saved_tensor_hooks
from magpy_like.torch_compat.dispatch import DisableAutocast
from magpy_like.torch_compat.functorch import innermost_transform, is_legacy_batched_tensor
from magpy_like.torch_compat.profiler import is_profiled
from magpy_like.torch_compat.tracing.tracing_context import compile_context, tracing
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_patches import untraced

Call = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Program:
    """The program that a node runs, apart from its two passes."""

    example_inputs: Sequence[Any]
    second_run: SecondRun | None
    """The same results operator by operator; None if the program must not run a second time."""
    statistics: CheckpointStatistics
    absent: AbsentGradients
    autocast: bool
    """Whether the graph was traced under autocast: then it has all casts, and must not run under
    it."""


def make_autograd_node(
    wrapped: Callable[..., Any],
    forward: Call,
    compile_backward: Callable[..., Call],
    program: Program,
) -> Callable[..., Any] | None:
    """A function like ``wrapped``, AOTAutograd's wrapper around ``forward``, with the node of this
    module.

    ``compile_backward(graph, example_inputs)`` compiles the backward graph when it first runs.
    Returns None if AOTAutograd's node is needed.
    """
    functions: list[Any] = torch.autograd.Function.__subclasses__()
    passes = ((function, getattr(function, "compiled_fw", None)) for function in functions)
    aot_function = next((f for f, call in passes if _innermost(call) is forward), None)
    if aot_function is None:
        return None
    metadata, saved = aot_function.metadata, _saved_tensors(aot_function, program)
    if saved is not None:
        saved.adapt_node(aot_function)
    program.absent.adapt_node(aot_function)
    make_once_differentiable(aot_function)
    # AOTAutograd would refuse ``retain_graph=True``, for compilers whose backward pass writes into
    # saved tensors. This one's does not.
    metadata.bw_donated_idxs = []
    if getattr(aot_function._lazy_backward_info, "saved_context", None) is None:  # not Dynamo's
        metadata.dynamic_saved_tensors_idxs = {}  # attributes of arguments, which Dynamo reads
    if saved is None or not _needs_no_runtime_wrapper(aot_function, program.example_inputs):
        return None
    backward = _lazy_backward(aot_function, compile_backward)
    second_run = _with_copies(program, metadata)
    if program.autocast:
        forward, backward = _without_autocast(forward), _without_autocast(backward)
    graph = aot_function._lazy_backward_info.bw_module
    layout = _NodeLayout.from_metadata(metadata, program, graph)
    apply = _make_apply(
        aot_function,
        _make_forward(layout, forward, saved, second_run, program.statistics),
        _make_backward(layout, backward, saved, second_run, program.statistics),
    )
    detached = _inputs_without_gradient(metadata, graph)

    def run(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return wrapped(*args)
        # The passes themselves count their writes to arguments for autograd.
        if detached:
            args = tuple(a.detach() if k in detached else a for k, a in enumerate(args))
        return apply(*args)

    return run


# --- AOTAutograd's metadata -----------------------------------------------------------------------


def _innermost(function: Any) -> Any:
    """The function that AOTAutograd has wrapped: before torch 2.13 some wrappers do nothing."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _saved_tensors(aot_function: Any, program: Program) -> SavedTensors | None:
    """The tensors that the forward pass saves; None if the graph of the backward pass, which reads
    them, is unknown or takes parts of them."""
    lazily = aot_function._lazy_backward_info
    if aot_function.maybe_subclass_metadata is not None or not hasattr(lazily, "bw_module"):
        return None
    count = aot_function.metadata.num_symints_saved_for_bw
    return SavedTensors(lazily.bw_module, program.absent, count)


def _needs_no_runtime_wrapper(aot_function: Any, example_inputs: Sequence[Any]) -> bool:
    """True if a call only runs the two passes."""
    known, lazily = aot_function.metadata, aot_function._lazy_backward_info
    rest = (
        known.num_mutated_inp_runtime_indices, known.num_intermediate_bases,
        known.num_outputs_aliased, known.num_outputs_rng_offset, known.num_graphsafe_rng_states,
        known.num_backward_tokens, known.num_opaque_objects_saved_for_bw, len(known.tokens),
        len(known.indices_of_inputs_that_requires_grad_with_mutations_in_bw),
        len(getattr(known, "act_input_indices", ())),
    )  # fmt: skip
    if any(rest) or known.is_rng_op_functionalized or known.grad_enabled_mutation is not None:
        return False
    if lazily.saved_context is not None:  # Dynamo may request fake results, and marks on sizes
        fake = lazily.saved_context.fakify_first_call
        if fake or known.dynamic_outputs or known.dynamic_saved_tensors_idxs:
            return False
    # Inputs that were merged, split or lifted out of the module are not the call's arguments.
    kinds = (Tensor, int, float, torch.SymInt, torch.SymFloat)
    tensors = [example for example in example_inputs if isinstance(example, Tensor)]
    if len(set(map(id, tensors))) < len(tensors):
        return False
    if len(known.input_info) != len(example_inputs):
        return False
    if not all(isinstance(example, kinds) for example in example_inputs):
        return False
    if any(info.mutates_metadata or info.mutates_storage_metadata for info in known.input_info):
        return False
    hooks = saved_tensor_hooks(True)
    if hooks is not None and all(isinstance(hook, fx.GraphModule) for hook in hooks):
        return False  # AOTAutograd has inlined these hooks into the passes
    origins = (getattr(d, "output", None) for d in known.traced_tangents_descs)
    return all(isinstance(origin, PlainAOTOutput) for origin in origins)


def _inputs_without_gradient(known: Any, backward: fx.GraphModule) -> frozenset[int]:
    """The indices of inputs that require a gradient and get none from the backward graph.

    Autograd must not continue to the functions that computed them: it would free their saved
    tensors, or pass zeros on. The example inputs may be leaves where those of a call are none.
    """
    (gradients,) = backward.graph.output_node().args
    return frozenset(
        k
        for k, (info, gradient) in enumerate(zip(known.input_info, gradients, strict=True))
        if gradient is None and info.requires_grad
    )


MOST_COPIED = 1 << 16
"""Elements of an argument that each call copies, for a second run."""


def _with_copies(program: Program, metadata: Any) -> SecondRun | None:
    """The program's second run, with the arguments to copy; None if one is too large."""
    known = program.second_run
    if known is None:
        return None
    modified = {k for k, info in enumerate(metadata.input_info) if info.mutates_data}
    copied = frozenset(modified - known.overwritten)
    for k in copied:
        count = program.example_inputs[k].numel()
        if type(count) is not int or count > MOST_COPIED:
            return None
    return replace(known, overwritten=known.overwritten & modified, copied=copied)


def _lazy_backward(aot_function: Any, compile_backward: Callable[..., Call]) -> Call:
    """The backward pass, compiled when it first runs unless AOTAutograd has compiled it: once with,
    and once without ``torch.use_deterministic_algorithms(True)``."""
    lazily = aot_function._lazy_backward_info
    calls: dict[bool, Call] = {}
    if aot_function.compiled_bw is not None:
        calls[aot_function.metadata.deterministic is not False] = aot_function.compiled_bw

    def run(args: list[Any]) -> Any:
        deterministic = torch.are_deterministic_algorithms_enabled()
        call = calls.get(deterministic)
        if call is None:
            call = call_uninterrupted(compile_once, deterministic)
        if is_profiled():  # since the forward pass, maybe
            show_all()
        return call(args)

    def compile_once(deterministic: bool) -> Call:
        with TRACING_LOCK:
            if deterministic not in calls:
                graph = copy.deepcopy(lazily.bw_module)
                contexts = lazily.saved_context, lazily.saved_compile_context
                with tracing(contexts[0]), compile_context(contexts[1]), torch.no_grad():
                    calls[deterministic] = compile_backward(graph, lazily.placeholder_list)
            return calls[deterministic]

    return run


def _without_autocast(call: Call) -> Call:
    """``call`` with autocast off: the graph has all casts."""

    def run(args: list[Any]) -> Any:
        with DisableAutocast():
            return call(args)

    return run


# --- the node ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NodeLayout:
    """The positions of inputs, results and saved values of the two passes."""

    inputs: int
    tensor_inputs: list[int]
    """The indices of inputs that are tensors."""
    results: int
    checked: slice
    """Of the forward pass's results: saved tensors whose version counter is checked."""
    unchecked: slice
    numbers: slice
    """Saved sizes and other numbers."""
    views: Sequence[int]
    """Results that autograd must not take for views."""
    non_differentiable: list[int]
    tangents: list[tuple[int, Any]]
    """(result index, layout as traced) of each gradient that the backward pass takes; no layout for
    one that it only passes on."""
    materialize: bool
    """Whether absent gradients arrive as zeros."""

    @classmethod
    def from_metadata(cls, known: Any, program: Program, backward: fx.GraphModule) -> _NodeLayout:
        """From AOTAutograd's metadata of the passes, and the graph of the backward pass."""
        used = [descriptor.output.idx for descriptor in known.traced_tangents_descs]
        formats = [
            None if all(user.op == "output" for user in gradient.users) else meta.memory_format
            for meta, gradient in zip(
                known.subclass_tangent_meta, tangents(backward.graph), strict=True
            )
        ]
        return cls(
            inputs=len(known.input_info),
            tensor_inputs=[
                k for k, e in enumerate(program.example_inputs) if isinstance(e, Tensor)
            ],
            results=known.num_outputs,
            checked=known.tensors_saved_for_backwards_with_vc_check_slice,
            unchecked=known.tensors_saved_for_backwards_no_vc_check_slice,
            numbers=known.symints_saved_for_backwards_slice,
            views=known.unsafe_view_out_indices,
            non_differentiable=[k for k, o in enumerate(known.output_info) if not o.requires_grad],
            tangents=[*zip(used, formats, strict=True)],
            materialize=program.absent.materializes,
        )


def _make_apply(
    aot_function: Any, forward_pass: Callable[..., Any], backward_pass: Callable[..., Any]
) -> Callable[..., Any]:
    """The ``apply`` of an ``autograd.Function`` of these passes: inputs -> tuple of results."""

    class CompiledFunction(aot_function):  # compiled autograd inspects both, and what they save
        forward = staticmethod(forward_pass)
        backward = staticmethod(backward_pass)

    # `Function.apply` itself checks for functorch's transforms first, which the caller has done.
    apply: Callable[..., Any] = super(torch.autograd.Function, CompiledFunction).apply
    return apply


def _make_forward(
    layout: _NodeLayout,
    run_forward: Call,
    saved: SavedTensors,
    second_run: SecondRun | None,
    statistics: CheckpointStatistics,
) -> Callable[..., Any]:
    # Locals: a call reads all of them.
    checked, unchecked, numbers = layout.checked, layout.unchecked, layout.numbers
    count, views, constant = layout.results, layout.views, layout.non_differentiable
    materialize = layout.materialize
    noting = second_run if second_run is not None and second_run.notes_calls else None
    updates_statistics = bool(statistics.auxiliary_inputs)

    def forward(ctx: Any, *args: Any) -> Any:
        ctx.call_arguments = save_call_arguments(args)
        if noting is not None:
            noting.note_call(ctx, args)
        ctx.recomputations = statistics.recomputations(args) if updates_statistics else None
        results = run_forward([*args])
        saved.save(ctx, [*map(not_view, results[checked])])
        ctx.symints, ctx.opaque_objects = results[numbers], ()
        ctx._tensors_no_vc_check = [*map(not_view, results[unchecked])]
        returned = tuple(results[:count])
        if views:
            returned = tuple(not_view(t) if k in views else t for k, t in enumerate(returned))
        if constant:
            tensors = (returned[k] for k in constant if isinstance(returned[k], Tensor))
            ctx.mark_non_differentiable(*tensors)
            ctx._materialize_non_diff_grads = False
        if not materialize:
            ctx.set_materialize_grads(False)
        return returned

    return forward


def _make_backward(
    layout: _NodeLayout,
    run_backward: Call,
    saved: SavedTensors,
    second_run: SecondRun | None,
    statistics: CheckpointStatistics,
) -> Callable[..., Any]:
    inputs, tangents, materialize = layout.inputs, layout.tangents, layout.materialize
    tensors = layout.tensor_inputs
    updates_statistics = bool(statistics.auxiliary_inputs)

    @untraced
    def backward(ctx: Any, *gradients_in: Any) -> Any:
        _check_no_transform()
        boxed = gradients_in[0] if type(gradients_in[0]) is list else [*gradients_in]
        differentiated = torch.is_grad_enabled()
        if differentiated or any(map(_is_batched, boxed)) or has_tangents(boxed):
            found = None if second_run is None else second_run.gradients(ctx, boxed)
            if found is not None:
                skip_unreached_functions(ctx, found, tensors)
                return found
            if not differentiated or has_tangents(boxed):
                raise RuntimeError(_NO_EAGER_BACKWARD)
        incoming = [_to_traced_layout(boxed[k], traced) for k, traced in tangents]
        boxed.clear()
        unpacked = saved.unpack(ctx, None if differentiated else incoming)
        args = [*ctx.symints, *unpacked, *ctx._tensors_no_vc_check]
        del unpacked
        ctx.maybe_clear_saved_tensors()
        if not materialize and not any(g is not None for g in incoming):
            skip_unreached_functions(ctx, found := (None,) * inputs, tensors)
            return found
        args += incoming
        del incoming
        run = run_backward
        if updates_statistics:
            run = _with_statistics_updates(run_backward, statistics, ctx, tensors)
        if differentiated:
            return call_once_differentiable(run, args, ctx)
        found = tuple(run(args))
        skip_unreached_functions(ctx, found, tensors)
        return found

    return backward


def _check_no_transform() -> None:
    """
    Raises:
        RuntimeError: a transform of functorch is active, which the compiled backward pass ignores.
    """
    if innermost_transform() is not None:
        raise RuntimeError(
            "the backward pass of a magpy-compiled function cannot run under vmap, grad or vjp"
        )


def _with_statistics_updates(
    backward: Call, statistics: CheckpointStatistics, ctx: Any, tensor_inputs: Sequence[int]
) -> Call:
    """``backward``, which also updates the statistics of recomputed checkpointed functions."""
    return lambda args: statistics.apply_updates(
        ctx.recomputations, backward(args), find_executed_inputs(ctx, tensor_inputs)
    )


_NO_EAGER_BACKWARD = (
    "a compiled backward pass cannot run for a batch of gradients at once, nor for gradients with "
    "tangents, and eager mode cannot run instead: the arguments of the magpy-compiled function are "
    "gone or were modified since the call, or it draws from a generator of its own, or uses the "
    "old values of a large argument that it modifies"
)


def _is_batched(gradient: Any) -> bool:
    """True if ``is_grads_batched`` has made one tensor of many gradients."""
    return gradient is not None and is_legacy_batched_tensor(gradient)


def _to_traced_layout(gradient: Any, traced: Any) -> Any:
    """An incoming gradient in the layout that it had when the pass was traced, if any; None if
    absent.

    Raises:
        RuntimeError: the gradient is of a tensor subclass.
    """
    if gradient is None:
        return None
    kind = type(gradient)
    if kind is not Tensor and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise RuntimeError(
            f"a magpy-compiled function received a {kind.__qualname__} as a gradient, "
            "and was compiled for plain tensors"
        )
    if traced is not None and traced.memory_format is torch.contiguous_format:
        if gradient.is_contiguous():
            return gradient
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if traced is None:
        return gradient
    if traced.memory_format is not None:
        return gradient.contiguous(memory_format=traced.memory_format)
    if gradient.stride() == traced.stride:
        return gradient
    laid_out = torch.empty_strided(
        traced.size, traced.stride, dtype=gradient.dtype, device=gradient.device
    )
    return laid_out.copy_(gradient)

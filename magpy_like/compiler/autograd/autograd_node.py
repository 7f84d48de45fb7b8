"""A node of autograd's graph around a compiled forward and backward pass.

AOTAutograd's own leads each call through some twenty Python functions, for whatever a program may
do: change its arguments, return views of them, save numbers, be given subclasses of tensors.
*Measured* for a linear layer of 16 by 16: 23 µs of a forward call, of which autograd itself needs
4. What AOTAutograd has found out about the program tells when nothing is left but to run the two
passes, and then this node does that; every other program keeps AOTAutograd's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from magpy_like.compiler.autograd.absent_gradients import spare_behind
from magpy_like.compiler.autograd.double_backward import again, given, has_tangents, once, say_once
from magpy_like.graph_operators.checkpoint_statistics import Again, wanted
from magpy_like.torch_compat.aot_autograd import PlainAOTOutput
from magpy_like.torch_compat.autograd import saved_tensor_hooks
from magpy_like.torch_compat.dispatch import DisableAutocast
from magpy_like.torch_compat.functorch import innermost_transform, is_legacy_batched_tensor
from magpy_like.torch_compat.tracing_context import compile_context, tracing
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_patches import untraced

aten = torch.ops.aten

Call = Callable[[list[Any]], Any]


def own_node(
    wrapped: Callable[..., Any], forward: Call, compile_backward: Callable[..., Call],
    example_inputs: Sequence[Any], program: Callable[..., Any] | None, written: Again, *,
    materialize: bool, autocast: bool,
) -> Callable[..., Any] | None:  # fmt: skip
    """What ``wrapped``, which AOTAutograd has made around ``forward``, does, by a node of ours.

    None where AOTAutograd's has more to do than to run the passes. ``program`` gives the same
    results operator by operator, if it may run a second time. ``materialize``: whether gradients
    that are absent come in as zeros; ``autocast``: whether the graph was traced under autocast, and
    so must not run under it.
    """
    kinds: list[Any] = torch.autograd.Function.__subclasses__()
    passes = ((kind, getattr(kind, "compiled_fw", None)) for kind in kinds)
    theirs = next((kind for kind, call in passes if _innermost(call) is forward), None)
    if theirs is None:
        return None
    say_once(theirs)
    if not _only_runs(theirs, example_inputs):
        return None
    backward = _backward(theirs, compile_backward)
    if autocast:
        forward, backward = _uncast(forward), _uncast(backward)
    if autocast or any(info.mutates_data for info in theirs.metadata.input_info):
        program = None
    apply = _node(theirs, forward, backward, program, written, materialize)
    detached = _without_gradient(theirs.metadata, theirs._lazy_backward_info.bw_module)

    def run(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return wrapped(*args)
        # That arguments are written to, the passes tell autograd themselves.
        if detached:
            args = tuple(a.detach() if k in detached else a for k, a in enumerate(args))
        return apply(*args)

    return run


def as_they_read(backward: Call, gradients: Sequence[fx.Node]) -> Call:
    """``backward`` with the gradients that come in as they read, not as they lie in memory: a view
    may be the negative or the conjugate of that, and nothing tells when the graph is traced."""
    if not gradients:
        return backward
    inputs = gradients[0].graph.find_nodes(op="placeholder")
    places = [inputs.index(node) for node in gradients]

    def run(args: list[Any]) -> Any:
        for k in places:
            args[k] = _as_it_reads(args[k])  # nothing else holds it while the pass runs
        return backward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _as_it_reads(gradient: Any) -> Any:
    if gradient is None or not (gradient.is_neg() or gradient.is_conj()):
        return gradient
    return gradient.resolve_neg().resolve_conj()


# --- what AOTAutograd knows -----------------------------------------------------------------------


def _innermost(function: Any) -> Any:
    """What AOTAutograd has wrapped: before torch 2.13 some wrappers have nothing to do."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _only_runs(theirs: Any, example_inputs: Sequence[Any]) -> bool:
    """Is there nothing to do at a call but to run the passes?"""
    known, lazily = theirs.metadata, theirs._lazy_backward_info
    if theirs.maybe_subclass_metadata is not None or not hasattr(lazily, "bw_module"):
        return False
    rest = (
        known.num_mutated_inp_runtime_indices, known.num_intermediate_bases,
        known.num_outputs_aliased, known.num_outputs_rng_offset, known.num_graphsafe_rng_states,
        known.num_backward_tokens, known.num_opaque_objects_saved_for_bw, len(known.tokens),
        len(known.indices_of_inputs_that_requires_grad_with_mutations_in_bw),
        len(getattr(known, "act_input_indices", ())),
    )  # fmt: skip
    if any(rest) or known.is_rng_op_functionalized or known.grad_enabled_mutation is not None:
        return False
    if lazily.saved_context is not None:  # Dynamo may want fake results, and marks on sizes
        fake = lazily.saved_context.fakify_first_call
        if fake or known.dynamic_outputs or known.dynamic_saved_tensors_idxs:
            return False
    # Inputs that were merged, taken apart or lifted out of the module are others than the call's.
    kinds = (Tensor, int, float, torch.SymInt, torch.SymFloat)
    tensors = [given for given in example_inputs if isinstance(given, Tensor)]
    if len(set(map(id, tensors))) < len(tensors):
        return False
    if len(known.input_info) != len(example_inputs):
        return False
    if not all(isinstance(given, kinds) for given in example_inputs):
        return False
    if any(info.mutates_metadata or info.mutates_storage_metadata for info in known.input_info):
        return False
    hooks = saved_tensor_hooks(True)
    if hooks is not None and all(isinstance(hook, fx.GraphModule) for hook in hooks):
        return False  # which AOTAutograd has put into the passes
    origins = (getattr(d, "output", None) for d in known.traced_tangents_descs)
    return all(isinstance(origin, PlainAOTOutput) for origin in origins)


def _without_gradient(known: Any, backward: fx.GraphModule) -> frozenset[int]:
    """The inputs, results of other functions, that the pass has no gradient for. Autograd must not
    go on to those functions: it would free what they have saved, or hand zeros on."""
    (gradients,) = backward.graph.output_node().args
    return frozenset(
        k
        for k, (info, gradient) in enumerate(zip(known.input_info, gradients, strict=True))
        if gradient is None and info.requires_grad and not info.is_leaf
    )


def _backward(theirs: Any, compile_backward: Callable[..., Call]) -> Call:
    """The backward pass, compiled when it is first asked for, if AOTAutograd has not."""
    lazily = theirs._lazy_backward_info
    call: Call | None = theirs.compiled_bw

    def run(args: list[Any]) -> Any:
        nonlocal call
        if call is None:
            with TRACING_LOCK:
                if call is None:
                    graph = copy.deepcopy(lazily.bw_module)
                    contexts = lazily.saved_context, lazily.saved_compile_context
                    with tracing(contexts[0]), compile_context(contexts[1]), torch.no_grad():
                        call = compile_backward(graph, lazily.placeholder_list)
        return call(args)

    return run


def _uncast(call: Call) -> Call:
    """``call`` without autocast: the graph has all casts."""

    def run(args: list[Any]) -> Any:
        with DisableAutocast():
            return call(args)

    return run


# --- the node ------------------------------------------------------------------------------------


def _node(
    theirs: Any, run_forward: Call, run_backward: Call, program: Callable[..., Any] | None,
    written: Again, materialize: bool,
) -> Callable[..., Any]:  # fmt: skip
    """A function of the inputs that gives a tuple of results, with a node in autograd's graph."""
    known = theirs.metadata
    inputs, count = len(known.input_info), known.num_outputs
    checked = known.tensors_saved_for_backwards_with_vc_check_slice
    unchecked = known.tensors_saved_for_backwards_no_vc_check_slice
    numbers = known.symints_saved_for_backwards_slice
    views = known.unsafe_view_out_indices
    constant = [k for k, info in enumerate(known.output_info) if not info.requires_grad]
    used = [descriptor.output.idx for descriptor in known.traced_tangents_descs]
    forms = [meta.memory_format for meta in known.subclass_tangent_meta]
    gradients = [*zip(used, forms, strict=True)]
    deterministic = known.deterministic is not False

    class CompiledFunction(theirs):  # compiled autograd takes both, and what they save, apart
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.given = given(args)
            ctx.targets = written.targets(args)
            results = run_forward([*args])
            ctx.save_for_backward(*map(_alone, results[checked]))
            ctx.symints, ctx.opaque_objects = results[numbers], ()
            ctx._tensors_no_vc_check = [*map(_alone, results[unchecked])]
            returned = tuple(results[:count])
            if views:
                returned = tuple(_viewed(t) if k in views else t for k, t in enumerate(returned))
            if constant:
                tensors = (returned[k] for k in constant if isinstance(returned[k], Tensor))
                ctx.mark_non_differentiable(*tensors)
                ctx._materialize_non_diff_grads = False
            if not materialize:
                ctx.set_materialize_grads(False)
            return returned

        @staticmethod
        @untraced
        def backward(ctx: Any, *gradients_in: Any) -> Any:
            if innermost_transform() is not None:
                raise RuntimeError("a compiled backward pass cannot run under vmap, grad or vjp")
            if not deterministic and torch.are_deterministic_algorithms_enabled():
                raise RuntimeError(_NOT_DETERMINISTIC)
            boxed = gradients_in[0] if type(gradients_in[0]) is list else [*gradients_in]
            differentiated = torch.is_grad_enabled()
            if differentiated or any(map(_is_batch, boxed)) or has_tangents(boxed):
                found = again(program, ctx, boxed)
                if found is not None:
                    spare_behind(ctx, found)
                    return found
                if not differentiated or has_tangents(boxed):
                    raise RuntimeError(_NOT_AT_ONCE)
            args = [*ctx.symints, *ctx.saved_tensors, *ctx._tensors_no_vc_check]
            ctx.maybe_clear_saved_tensors()
            incoming = [_formed(boxed[k], form) for k, form in gradients]
            boxed.clear()
            if not materialize and not any(g is not None for g in incoming):
                spare_behind(ctx, found := (None,) * inputs)
                return found
            args += incoming
            del incoming
            run = run_backward
            if written.taps:
                run = _writing(run_backward, written, ctx)
            if differentiated:
                return once(run, args, ctx)
            found = tuple(run(args))
            spare_behind(ctx, found)
            return found

    # `Function.apply` itself looks for functorch's transforms first, which the caller has done.
    apply: Callable[..., Any] = super(torch.autograd.Function, CompiledFunction).apply
    return apply


def _writing(backward: Call, written: Again, ctx: Any) -> Call:
    """``backward``, which writes to statistics as well."""
    return lambda args: written.write(ctx.targets, backward(args), wanted(ctx))


_NOT_DETERMINISTIC = (
    "a backward pass was compiled without torch.use_deterministic_algorithms(True), and is to run "
    "under it"
)


_NOT_AT_ONCE = (
    "a compiled backward pass cannot run for a batch of gradients at once, nor for gradients with "
    "tangents: what the program was given is gone or has changed, or it draws random numbers or "
    "changes its arguments"
)


def _is_batch(gradient: Any) -> bool:
    """Whether ``is_grads_batched`` has made one of many."""
    return gradient is not None and is_legacy_batched_tensor(gradient)


def _alone(saved: Tensor) -> Tensor:
    """A tensor for the backward pass, without the one that it is a view of."""
    return saved.detach() if saved._is_view() else saved


def _viewed(result: Tensor) -> Tensor:
    """A result that nothing shares memory with, and that autograd takes for no view."""
    return aten._unsafe_view(result, result.shape)


def _formed(gradient: Any, form: Any) -> Any:
    """A gradient that comes in, as it lay in memory when the pass was traced."""
    if gradient is None:
        return None
    kind = type(gradient)
    if kind is not Tensor and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise RuntimeError(f"a {kind.__qualname__} as a gradient for what was compiled for tensors")
    if form.memory_format is torch.contiguous_format and gradient.is_contiguous():
        return gradient
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if form.memory_format is not None:
        return gradient.contiguous(memory_format=form.memory_format)
    if gradient.stride() == form.stride:
        return gradient
    laid_out = torch.empty_strided(
        form.size, form.stride, dtype=gradient.dtype, device=gradient.device
    )
    return laid_out.copy_(gradient)

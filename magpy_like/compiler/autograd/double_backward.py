"""Double backward of compiled passes, and backward passes for a batch of gradients.

A compiled backward pass has no backward of its own. Under ``create_graph``, for a batch of
gradients (``is_grads_batched``) and for gradients with tangents (forward-mode AD), autograd runs
the program once more instead, operator by operator, from the arguments of the compiled call.
Nothing is kept for that, so all arguments must still exist, unmodified.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from magpy_like.torch_compat.functorch import is_forward_ad_active
from magpy_like.torch_patches import untraced

CallArguments = list[Any] | None
"""A call's arguments: numbers, and weak references to tensors with their version counters; None if
a tensor has no version counter."""


def save_call_arguments(args: Sequence[Any]) -> CallArguments:
    """The arguments, tensors by weak reference: they live as long as somebody else keeps them."""
    try:
        return [a if type(a) in (int, float) else (weakref.ref(a), a._version) for a in args]
    except RuntimeError:  # inference tensors have no version counter
        return None


def _restore_call_arguments(saved: CallArguments) -> list[Any] | None:
    """The arguments again; None if one is gone, or was modified in place."""
    if saved is None:
        return None
    found = []
    for argument in saved:
        if isinstance(argument, tuple):
            tensor, version = argument[0](), argument[1]
            if tensor is None or tensor._version != version:
                return None
            argument = tensor
        found.append(argument)
    return found


def run_eager_backward(
    program: Callable[..., Any] | None, ctx: Any, gradients: Sequence[Any]
) -> tuple[Any, ...] | None:
    """The gradients of the call's arguments, differentiable, by running ``program`` once more.

    Args:
        program: operator by operator; None if it must not run a second time.
        ctx: of the compiled call, with ``call_arguments`` by :func:`save_call_arguments`.
        gradients: of the program's results, None for absent ones.

    Returns None where the program cannot run once more.
    """
    args = None if program is None else _restore_call_arguments(ctx.call_arguments)
    if program is None or args is None:
        return None
    with torch.enable_grad():
        # Views, so that hooks on the arguments do not run.
        views = [a.view_as(a) if isinstance(a, Tensor) else a for a in args]
        results = program(*views)
    needed = [k for k, needs in enumerate(ctx.needs_input_grad) if needs]
    pairs = [
        (result, gradient)
        for result, gradient in zip(results, gradients, strict=True)
        if gradient is not None and isinstance(result, Tensor) and result.requires_grad
    ]
    found: list[Any] = [None] * len(args)
    if pairs:
        outputs, incoming = zip(*pairs, strict=True)
        inputs = [views[k] for k in needed]
        taken = torch.autograd.grad(
            outputs, inputs, incoming, create_graph=torch.is_grad_enabled(), allow_unused=True
        )
        for k, gradient in zip(needed, taken, strict=True):
            found[k] = gradient
    return tuple(found)


def has_tangents(gradients: Sequence[Any]) -> bool:
    """True if a gradient has a tangent of forward-mode AD, which compiled passes do not compute."""
    if not is_forward_ad_active():
        return False
    tensors = (g for g in gradients if isinstance(g, Tensor))
    return any(forward_ad.unpack_dual(g).tangent is not None for g in tensors)


def call_once_differentiable(
    backward: Callable[[list[Any]], Any], args: Sequence[Any], ctx: Any
) -> Any:
    """The results of a backward pass, as tensors whose own backward raises a RuntimeError, whatever
    they are differentiated by."""
    return _OnceDifferentiable.apply(backward, len(args), *args, *_differentiable_sources(ctx))


def make_once_differentiable(function: Any) -> None:
    """Replace the backward of AOTAutograd's ``autograd.Function`` by one that refuses double
    backward in all cases: AOTAutograd's own does so only for gradients that depend on arguments
    which the pass has saved as they are."""
    backward = function.backward

    @untraced
    def run(ctx: Any, *gradients: Any) -> Any:
        if has_tangents(gradients[0] if type(gradients[0]) is list else gradients):
            raise RuntimeError(
                "no gradients with tangents (forward-mode AD) through this magpy-compiled "
                "function. Compute them in eager mode"
            )
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        if type(gradients[0]) is list:
            return call_once_differentiable(lambda args: backward(ctx, args), gradients[0], ctx)
        return call_once_differentiable(lambda args: backward(ctx, *args), gradients, ctx)

    function.backward = staticmethod(run)


class _OnceDifferentiable(torch.autograd.Function):
    """Calls a function with the first ``count`` of its arguments; the others only connect the
    results to the graph of autograd, so that differentiating them reaches ``backward``."""

    @staticmethod
    def forward(ctx: Any, backward: Callable[[list[Any]], Any], count: int, *args: Any) -> Any:
        return tuple(backward([*args[:count]]))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "no double backward through this magpy-compiled function: its arguments are gone or "
            "were modified since the call, or it draws random numbers, or modifies or returns its "
            "arguments. Keep the arguments as they are until the second backward pass, or take the "
            "gradients inside of the compiled function"
        )


def _differentiable_sources(ctx: Any) -> list[Tensor]:
    """Tensors that the gradients depend on: arguments of the call that still exist, and the leaves
    that the others were computed from."""
    saved = getattr(ctx, "call_arguments", None) or ()
    arguments = (argument[0]() for argument in saved if isinstance(argument, tuple))
    found = {id(t): t for t in arguments if t is not None and t.requires_grad}
    nodes, seen = [ctx], {ctx}
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
        further = {next_node for next_node, _ in node.next_functions} - seen - {None}
        seen |= further
        nodes += further
    return list(found.values())

"""Gradients of compiled passes that are differentiated once more, or taken for many at once.

A compiled backward pass has no gradients of its own. Under ``create_graph``, for a batch of
gradients and for those with tangents, autograd runs the program operator by operator instead, once
more, from what it was given then: nothing else is kept for it, so all of that must still be there,
unchanged.
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

Given = list[Any] | None
"""What a program was given: numbers, and tensors as long as somebody else keeps them, with their
versions; None if that has none."""


def given(args: Sequence[Any]) -> Given:
    try:
        return [a if type(a) in (int, float) else (weakref.ref(a), a._version) for a in args]
    except RuntimeError:  # inference tensors do not know how often they were changed
        return None


def _now(given: Given) -> list[Any] | None:
    """The same again; None when something is gone, or was changed in place."""
    found = []
    for one in given or ():
        if isinstance(one, tuple):
            tensor, version = one[0](), one[1]
            if tensor is None or tensor._version != version:
                return None
            one = tensor
        found.append(one)
    return None if given is None else found


def again(
    program: Callable[..., Any] | None, ctx: Any, gradients: Sequence[Any]
) -> tuple[Any, ...] | None:
    """Gradients of what ``program`` was given, of which autograd knows where they come from; None
    where it cannot run once more."""
    given = None if program is None else _now(ctx.given)
    if program is None or given is None:
        return None
    with torch.enable_grad():
        # Whose hooks are others than those of what was given.
        own = [g.view_as(g) if isinstance(g, Tensor) else g for g in given]
        results = program(*own)
    wanted = [k for k, needed in enumerate(ctx.needs_input_grad) if needed]
    pairs = [
        (result, gradient)
        for result, gradient in zip(results, gradients, strict=True)
        if gradient is not None and isinstance(result, Tensor) and result.requires_grad
    ]
    found: list[Any] = [None] * len(given)
    if pairs:
        outputs, incoming = zip(*pairs, strict=True)
        inputs = [own[k] for k in wanted]
        differentiated = torch.is_grad_enabled()
        taken = torch.autograd.grad(
            outputs, inputs, incoming, create_graph=differentiated, allow_unused=True
        )
        for k, gradient in zip(wanted, taken, strict=True):
            found[k] = gradient
    return tuple(found)


def has_tangents(gradients: Sequence[Any]) -> bool:
    """Whether some of them are to be differentiated forwards, which compiled passes do not do."""
    if not is_forward_ad_active():
        return False
    tensors = (g for g in gradients if isinstance(g, Tensor))
    return any(forward_ad.unpack_dual(g).tangent is not None for g in tensors)


def once(backward: Callable[[list[Any]], Any], args: Sequence[Any], ctx: Any) -> Any:
    """What a backward pass gives that cannot be differentiated again, and that says so, whatever it
    is differentiated by."""
    return _Once.apply(backward, len(args), *args, *_reached(ctx))


def say_once(function: Any) -> None:
    """Have a function of AOTAutograd's give its gradients :func:`once`: they say so themselves only
    if they came of arguments that the pass has saved as they are."""
    backward = function.backward

    @untraced
    def run(ctx: Any, *given: Any) -> Any:
        if has_tangents(given[0] if type(given[0]) is list else given):
            raise RuntimeError("no gradients with tangents through this compiled pass")
        if not torch.is_grad_enabled():
            return backward(ctx, *given)
        if type(given[0]) is list:
            return once(lambda args: backward(ctx, args), given[0], ctx)
        return once(lambda args: backward(ctx, *args), given, ctx)

    function.backward = staticmethod(run)


class _Once(torch.autograd.Function):
    """Calls a function with the first ``count`` of its arguments; the others lead on."""

    @staticmethod
    def forward(ctx: Any, backward: Callable[[list[Any]], Any], count: int, *args: Any) -> Any:
        return tuple(backward([*args[:count]]))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "no double backward through this compiled pass: what the program was given is gone or "
            "has changed, or it draws random numbers, or changes or returns its arguments. Keep "
            "what it is given as it is, or take the gradients inside of what is compiled"
        )


def _reached(ctx: Any) -> list[Tensor]:
    """Tensors that gradients depend on: those that were given and are still there, and parameters
    that the others were made of."""
    given = (one[0]() for one in getattr(ctx, "given", None) or () if isinstance(one, tuple))
    found = {id(t): t for t in given if t is not None and t.requires_grad}
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

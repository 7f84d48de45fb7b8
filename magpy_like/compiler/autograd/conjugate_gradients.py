"""Conj and neg bits of incoming gradients: a gradient may be a conjugate or negative view.

Whether it is one is unknown when the backward graph is traced. AOTAutograd traces it for a gradient
with the bits of the result itself; autograd may pass any other. So the compiled graph receives
gradients without the bits, and makes the views that it was traced for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.passes.graph_queries import aten, insert, value

Call = Callable[[list[Any]], Any]

_BITS: tuple[tuple[Callable[[torch.Tensor], bool], Any, Any], ...] = (
    (torch.Tensor.is_neg, aten._neg_view.default, aten.neg.default),
    (torch.Tensor.is_conj, aten._conj.default, aten.conj_physical.default),
)
"""A bit: how to read it, the operator that flips it, and the one that computes its effect."""


def take_resolved_gradients(graph: fx.Graph, gradients: Sequence[fx.Node]) -> None:
    """Change a backward graph, traced for gradients with conj and neg bits, to take them without.

    ``gradients`` are the graph's placeholders for incoming gradients. Operators may refuse a tensor
    with a bit, or without it, so each reads a view with the bits that it was traced for.
    """
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for gradient in gradients:
        traced = value(gradient)
        if not isinstance(traced, torch.Tensor) or not (traced.is_neg() or traced.is_conj()):
            continue
        users, view = list(gradient.users), gradient
        for is_set, flip, _ in _BITS:
            if is_set(traced):
                gradient.meta["val"] = _flipped(flip, gradient)
        for is_set, flip, compute in _BITS:
            if is_set(traced):
                view = insert(graph, flip, insert(graph, compute, view, like=first), like=first)
        for user in users:
            user.replace_input_with(gradient, view)


def _flipped(flip: Callable[[torch.Tensor], torch.Tensor], node: fx.Node) -> torch.Tensor:
    """A node's fake value with a bit flipped."""
    fake = value(node)
    mode = getattr(fake, "fake_mode", None)
    if mode is None:
        return flip(fake)
    with mode, torch.no_grad():
        return flip(fake)


def resolve_conj_and_neg(backward: Call, gradients: Sequence[fx.Node]) -> Call:
    """``backward`` with the conj and neg bits of incoming gradients resolved.

    ``gradients`` are the backward graph's placeholders for incoming gradients.
    """
    if not gradients:
        return backward
    inputs = gradients[0].graph.find_nodes(op="placeholder")
    indices = [inputs.index(node) for node in gradients]

    def run(args: list[Any]) -> Any:
        for k in indices:
            args[k] = _resolve_conj_and_neg(args[k])  # nothing else holds it while the pass runs
        return backward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _resolve_conj_and_neg(gradient: Any) -> Any:
    if gradient is None or not (gradient.is_neg() or gradient.is_conj()):
        return gradient
    return gradient.resolve_neg().resolve_conj()

"""Gradients in the same memory: autograd must see which of them it may take over.

Where a gradient arrives at a leaf, autograd makes the tensor itself the leaf's ``.grad`` if nobody
else holds that tensor, and a copy otherwise. It asks who holds the tensor, not who holds its
memory. In eager mode, one tensor that is the gradient of two leaves has two holders, and so has a
tensor of which autograd has yet to make a view that is another gradient. A compiled backward pass
hands over all gradients at once, and launchers make several tensors of one memory. So equal
gradients are made one tensor again, and a gradient that others are views of is copied.

Two views of one tensor stay as they are: in eager mode, too, autograd takes over both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from magpy_like.compiler.passes.graph_queries import aten, insert, is_view, tensor
from magpy_like.compiler.passes.mutations.overlapping_writes import has_overlap

Call = Callable[[list[Any]], Any]


def compile_with_shared_gradients(
    compiler: Callable[[fx.GraphModule], Call], gm: fx.GraphModule
) -> Call:
    """The backward graph ``gm``, compiled by ``compiler``, with gradients that autograd takes over
    as in eager mode."""
    _copy_viewed_gradients(gm)
    (gradients,) = gm.graph.output_node().args
    first: dict[Any, int] = {}
    positions = [first.setdefault(node, k) for k, node in enumerate(gradients)]
    repeated = [(k, at) for k, at in enumerate(positions) if k != at and gradients[k] is not None]
    backward = compiler(gm)
    if not repeated:
        return backward

    def run(args: list[Any]) -> Any:
        found = list(backward(args))
        for k, at in repeated:
            found[k] = found[at]
        return found

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _copy_viewed_gradients(gm: fx.GraphModule) -> None:
    """Have a backward graph return copies of gradients that others are views of, in place."""
    output = gm.graph.output_node()
    (gradients,) = output.args
    found = dict.fromkeys(node for node in gradients if tensor(node) is not None)
    viewed = {base for node in found for base in _bases(node)} & found.keys()
    # Autograd always copies a gradient whose elements overlap.
    copies = {
        node: insert(gm.graph, aten.clone.default, node, like=output)
        for node in found
        if node in viewed and not has_overlap(node.meta["val"])
    }
    if copies:
        output.args = (tuple(copies.get(node, node) for node in gradients),)
        gm.recompile()


def _bases(node: fx.Node) -> set[fx.Node]:
    """The tensors that a node is a view of: its argument, the tensor that this is a view of, …"""
    found = set()
    while node.all_input_nodes and (is_view(node) or node.target is operator.getitem):
        node = node.all_input_nodes[0]
        found.add(node)
    return found

"""Writes to what shows one place several times: ``x.expand(2, 3).fill_(1)``.

Torch's functional form computes what such a view would hold, and carries that back to what it is a
view of: of an expanded one it adds up the differences, of windows it adds up the elements. Eager
writes to the place that there is, so there eager runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes.layout.argument_forms import is_mutating
from magpy_like.compiler.passes.layout.position_tensors import has_inplace_flag, returns_new_memory
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.functorch import get_unwrapped, is_wrapped_tensor


def reject_overlapping_writes(gm: GraphModule) -> None:
    """Have Unsupported raised, once strides are known, where a graph writes to such a view."""
    changed = False
    for node in list(gm.graph.nodes):
        if node.op.startswith("call") and (is_mutating(node) or has_inplace_flag(node)):
            written = _written(node)
            if shown := list(_shown_through(written)):
                with gm.graph.inserting_before(node):
                    gm.graph.call_function(_look, (written, shown, _windows(shown)))
                changed = True
    if changed:
        gm.recompile()


def _written(node: Node) -> list[Node]:
    """What a call writes to: its first argument, and ``out``."""
    first = node.args[:1] or list(node.kwargs.values())[:1]
    found = pytree.tree_leaves([first, node.kwargs.get("out")])
    return [leaf for leaf in found if isinstance(leaf, Node)]


def _shown_through(nodes: list[Node]) -> Iterator[Node]:
    """Every node that these may share their memory with, as far as operators tell."""
    seen: set[Node] = set()
    while nodes:
        node, *nodes = nodes
        if node not in seen and not returns_new_memory(node):
            seen.add(node)
            yield node
            nodes = [*node.all_input_nodes, *nodes]


def _windows(nodes: list[Node]) -> list[Node]:
    """Even windows that are apart lose what lies between them."""
    return [node for node in nodes if node.target in ("unfold", Tensor.unfold)]


def _look(written: list[Any], shown: list[Any], windows: list[Any]) -> None:
    places = {_memory(t) for t in _tensors(written)}
    for views, wrong in ((shown, _overlaps), (windows, lambda _: True)):
        if any(_memory(t) in places and wrong(t) for t in _tensors(views)):
            raise Unsupported("a graph", "it writes to a view that shows a place twice")


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors that have memory, without what a transformation wraps them in."""
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
            while is_wrapped_tensor(leaf):
                leaf = get_unwrapped(leaf)
            yield leaf


def _memory(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _overlaps(t: Tensor) -> bool:
    """Whether two elements may be one place, by the sizes of the example."""
    extent = 0
    for step, size in sorted(zip(map(_number, t.stride()), map(_number, t.shape), strict=True)):
        if size == 0:
            return False
        if size > 1 and step <= extent:
            return True
        extent += step * (size - 1)
    return False


def _number(size: Any) -> int:
    known = size if isinstance(size, int) else size.node.hint
    return 2 if known is None else known

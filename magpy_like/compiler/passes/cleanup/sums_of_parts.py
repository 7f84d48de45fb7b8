"""Sums of parts of tensors as parts of one sum.

The gradient of a concatenation is taken apart, and what went into several concatenations, as the
layers of a dense block do, has a sum of its parts: one for each layer and each layer behind it. As
one sum they are as few as layers, and one that is stored when there is much to read frees all of
what it is made of, of which otherwise the last part would keep the whole.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.graph_queries import (
    argument,
    aten,
    have_same_sizes,
    insert,
    is_pure,
    is_view,
    tensor,
)


class _Part(NamedTuple):
    whole: Node
    dim: int
    start: int
    end: int


def merge_slice_sums(gm: GraphModule) -> bool:
    """Make one sum of sums, one right after the other, whose parts lie side by side; whether there
    are any."""
    changed = False
    run: list[Node] = []
    for node in list(gm.graph.nodes):
        if node.target is aten.slice.Tensor:
            continue
        if run and not _is_beside(run[-1], node):
            changed |= _join(run)
            run = []
        if _parts(node) is not None:
            run.append(node)
    return changed


def _parts(node: Node) -> tuple[_Part, _Part] | None:
    """The two parts that a node adds, if it may become part of a larger sum: nobody may ask for
    memory without gaps."""
    if node.target is not aten.add.Tensor or node.kwargs:
        return None
    if not all(is_pure(user) and not is_view(user) for user in node.users):
        return None
    first, second = map(_part, node.args)
    if first is None or second is None:
        return None
    sizes = [part.whole.meta["val"].dim() for part in (first, second)]
    lengths = [part.end - part.start for part in (first, second)]
    same = sizes[0] == sizes[1] and lengths[0] == lengths[1] and first.dim == second.dim
    return (first, second) if same else None


def _part(node: object) -> _Part | None:
    """What a slice is a part of, where that is known to be a number of elements next to another."""
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor:
        return None
    whole, dim = node.args[0], argument(node, 1, "dim", 0)
    val, shown = tensor(whole), tensor(node)
    if val is None or shown is None or argument(node, 4, "step", 1) != 1:
        return None
    size, length = val.shape[dim], shown.shape[dim]
    start = argument(node, 2, "start", 0) or 0
    if not all(type(number) is int for number in (size, length, start)):
        return None
    start = max(start + size, 0) if start < 0 else start
    return _Part(whole, dim % val.dim(), start, start + length) if length else None


def _is_beside(before: Node, node: Node) -> bool:
    """Whether a node sums the parts right after those of the node before."""
    these, those = _parts(before), _parts(node)
    return (
        these is not None
        and those is not None
        and all(a[:2] == b[:2] and a.end == b.start for a, b in zip(these, those, strict=True))
    )


def _join(run: list[Node]) -> bool:
    """Make one sum of several; whether they are."""
    if len(run) < 2:
        return False
    first, last = _parts(run[0]), _parts(run[-1])
    assert first is not None and last is not None
    graph, like, dim = run[0].graph, run[0], first[0].dim
    together = [
        insert(graph, aten.slice.Tensor, a.whole, dim, a.start, b.end, like=like)
        for a, b in zip(first, last, strict=True)
    ]
    whole = insert(graph, aten.add.Tensor, *together, like=like)
    new, end = [], 0
    for node in run:
        start, end = end, end + node.meta["val"].shape[dim]
        new.append(insert(graph, aten.slice.Tensor, whole, dim, start, end, like=like))
    if not all(map(_same_but_for_gaps, run, new)):
        return False
    for node, part in zip(run, new, strict=True):
        node.replace_all_uses_with(part)
        graph.erase_node(node)
    return True


def _same_but_for_gaps(node: Node, part: Node) -> bool:
    """Whether a part of a tensor lies in memory as the node's result does, gaps left out."""
    a, b = node.meta["val"], part.meta["val"]
    return a.dtype == b.dtype and have_same_sizes(a.stride(), torch.empty_like(b).stride())

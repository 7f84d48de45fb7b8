"""Sums of adjacent slices as slices of one sum.

The gradient of a concatenation is split into slices. An input of several concatenations, such as a
layer of a dense block, gets a sum of slices for each of them: quadratically many in the number of
layers. Merged, there are as many sums as layers, and a sum that is stored early frees both tensors
that it is computed from; otherwise the last slice would keep all of them alive.
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


class _Slice(NamedTuple):
    """Elements ``start`` to ``end`` of a tensor along one dimension."""

    whole: Node
    dim: int
    start: int
    end: int


def merge_slice_sums(gm: GraphModule) -> bool:
    """Merge successive sums whose slices are adjacent, in place; True if there are any."""
    changed = False
    run: list[Node] = []
    for node in list(gm.graph.nodes):
        if node.target is aten.slice.Tensor:
            continue
        if run and not _is_adjacent(run[-1], node):
            changed |= _merge(run)
            run = []
        if _summed_slices(node) is not None:
            run.append(node)
    return changed


def _summed_slices(node: Node) -> tuple[_Slice, _Slice] | None:
    """The two slices that a node adds, if it may become a slice of a larger sum.

    Such a slice has gaps in memory, which its users must neither read nor return.
    """
    if node.target is not aten.add.Tensor or node.kwargs:
        return None
    if not all(is_pure(user) and not is_view(user) for user in node.users):
        return None
    first, second = map(_as_slice, node.args)
    if first is None or second is None:
        return None
    ranks = [part.whole.meta["val"].dim() for part in (first, second)]
    lengths = [part.end - part.start for part in (first, second)]
    same = ranks[0] == ranks[1] and lengths[0] == lengths[1] and first.dim == second.dim
    return (first, second) if same else None


def _as_slice(node: object) -> _Slice | None:
    """The slice that a node takes, if it has step 1 and no symbolic bounds."""
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor:
        return None
    whole, dim = node.args[0], argument(node, 1, "dim", 0)
    val, taken = tensor(whole), tensor(node)
    if val is None or taken is None or argument(node, 4, "step", 1) != 1:
        return None
    size, length = val.shape[dim], taken.shape[dim]
    start = argument(node, 2, "start", 0) or 0
    if not all(type(number) is int for number in (size, length, start)):
        return None
    start = max(start + size, 0) if start < 0 else start
    return _Slice(whole, dim % val.dim(), start, start + length) if length else None


def _is_adjacent(before: Node, node: Node) -> bool:
    """True if a node sums the slices right after those that ``before`` sums."""
    left, right = _summed_slices(before), _summed_slices(node)
    return (
        left is not None
        and right is not None
        and all(a[:2] == b[:2] and a.end == b.start for a, b in zip(left, right, strict=True))
    )


def _merge(run: list[Node]) -> bool:
    """Replace several sums by slices of one sum; True if replaced."""
    if len(run) < 2:
        return False
    first, last = _summed_slices(run[0]), _summed_slices(run[-1])
    assert first is not None and last is not None
    graph, like, dim = run[0].graph, run[0], first[0].dim
    merged = [
        insert(graph, aten.slice.Tensor, a.whole, dim, a.start, b.end, like=like)
        for a, b in zip(first, last, strict=True)
    ]
    whole = insert(graph, aten.add.Tensor, *merged, like=like)
    new, end = [], 0
    for node in run:
        start, end = end, end + node.meta["val"].shape[dim]
        new.append(insert(graph, aten.slice.Tensor, whole, dim, start, end, like=like))
    if not all(map(_has_same_dense_layout, run, new)):
        return False
    for node, part in zip(run, new, strict=True):
        node.replace_all_uses_with(part)
        graph.erase_node(node)
    return True


def _has_same_dense_layout(node: Node, part: Node) -> bool:
    """True if a slice has the layout of the node's result, gaps aside."""
    a, b = node.meta["val"], part.meta["val"]
    return a.dtype == b.dtype and have_same_sizes(a.stride(), torch.empty_like(b).stride())

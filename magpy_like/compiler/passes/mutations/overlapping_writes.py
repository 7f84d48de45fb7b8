"""Writes to elements that overlap in memory: ``x.expand(2, 3).fill_(1)``.

Functionalisation computes the new value of such a view, and scatters it back to the base: for an
expanded view it adds up the differences, for windows (``unfold``) it adds up the elements. Eager
writes to one memory location, so such graphs are left to eager.

So are writes to conjugate or negative views (``x.conj().add_(1)``): functionalisation would return
a conjugate for their base. So are writes to lists whose tensors overlap, such as
``torch._foreach_add_([x, x], 1)``: eager writes to one tensor after the other, and
functionalisation computes all of them from old values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes.mutations.metadata_mutations import is_mutating
from magpy_like.compiler.passes.mutations.tensor_subscripts import (
    has_inplace_flag,
    returns_new_memory,
)
from magpy_like.graph_operators.control_operators import custom_writes, name_of
from magpy_like.graph_operators.node_metadata import CUSTOM_WRITES
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.functorch import get_unwrapped, is_wrapped_tensor


def reject_overlapping_writes(gm: GraphModule) -> None:
    """Insert checks that raise Unsupported where a graph writes to such a view or list, in place.

    They run when AOTAutograd traces the graph: then strides are known.
    """
    changed = False
    for node in list(gm.graph.nodes):
        if is_write(node):
            written = written_arguments(node)
            if _writes_to_list(node):
                with gm.graph.inserting_before(node):
                    values = [*node.args, *node.kwargs.values()]
                    gm.graph.call_function(_check_list, (values,))
                changed = True
            if aliases := list(possible_aliases(written)):
                with gm.graph.inserting_before(node):
                    gm.graph.call_function(_check_overlap, (written, aliases, _windows(aliases)))
                changed = True
    if changed:
        gm.recompile()


def is_write(node: Node) -> bool:
    """True for calls that write to an argument, by their name, ``out=`` or ``inplace=True``."""
    return node.op.startswith("call") and (is_mutating(node) or has_inplace_flag(node))


def written_arguments(node: Node) -> list[Node]:
    """The arguments that a call writes to: the first, and ``out``; those of a custom function."""
    if CUSTOM_WRITES in node.meta:
        return custom_writes(node)
    first = node.args[:1] or list(node.kwargs.values())[:1]
    found = pytree.tree_leaves([first, node.kwargs.get("out")])
    return [leaf for leaf in found if isinstance(leaf, Node)]


def possible_aliases(nodes: list[Node]) -> Iterator[Node]:
    """Every node that these may share memory with, by the schemas of operators."""
    seen: set[Node] = set()
    while nodes:
        node, *nodes = nodes
        if node not in seen and not returns_new_memory(node):
            seen.add(node)
            yield node
            nodes = [*node.all_input_nodes, *nodes]


def _windows(nodes: list[Node]) -> list[Node]:
    """The ``unfold`` nodes: writes even to disjoint windows lose the elements between them."""
    return [node for node in nodes if node.target in ("unfold", Tensor.unfold)]


def _check_overlap(written: list[Any], aliases: list[Any], windows: list[Any]) -> None:
    if any(t.is_conj() or t.is_neg() for t in _tensors(written)):
        raise Unsupported("a graph", "it writes to a conjugate or negative view")
    storages = {_storage(t) for t in _tensors(written)}
    for views, is_rejected in ((aliases, has_overlap), (windows, lambda _: True)):
        if any(_storage(t) in storages and is_rejected(t) for t in _tensors(views)):
            raise Unsupported("a graph", "it writes to a view whose elements overlap in memory")


def _writes_to_list(node: Node) -> bool:
    """True if the first argument is a list, which the graph may also compute: ``x.unbind()``."""
    if "out" in node.kwargs:
        return False
    first = next(iter((*node.args, *node.kwargs.values())), None)
    return isinstance(first, list | tuple) or name_of(node).startswith("_foreach_")


def _check_list(values: list[Any]) -> None:
    """Raises Unsupported if an entry of the first list may overlap with the tensors of another
    entry, in any list, or with tensors that are in no list."""
    taken: dict[int, list[tuple[int, range | None]]] = defaultdict(list)
    for value in values:
        for number, tensor in enumerate(_tensors(value)):
            of_entry = -1 if isinstance(value, Tensor) else number
            taken[_storage(tensor)].append((of_entry, _span(tensor)))
    for number, tensor in enumerate(_tensors(values[0])):
        span = _span(tensor)
        for of_entry, other in taken[_storage(tensor)]:
            if of_entry != number and _may_overlap(span, other):
                raise Unsupported("a graph", "it writes to a list whose tensors overlap in memory")


def _may_overlap(a: range | None, b: range | None) -> bool:
    return a is None or b is None or max(a.start, b.start) < min(a.stop, b.stop)


def _span(t: Tensor) -> range | None:
    """The bytes from a tensor's first element to its last; None if sizes are symbolic."""
    sizes, strides, offset = t.shape, t.stride(), t.storage_offset()
    if not all(isinstance(number, int) for number in (*sizes, *strides, offset)):
        return None
    start, extent = offset * t.itemsize, 0
    if 0 not in sizes:
        extent = 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    return range(start, start + extent * t.itemsize)


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The strided tensors, unwrapped from functorch's transforms."""
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
            while is_wrapped_tensor(leaf):
                leaf = get_unwrapped(leaf)
            yield leaf


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def has_overlap(t: Tensor) -> bool:
    """True if two elements may be one memory location, by the sizes' hints."""
    extent = 0
    for step, size in sorted(zip(map(_hint, t.stride()), map(_hint, t.shape), strict=True)):
        if size == 0:
            return False
        if size > 1 and step <= extent:
            return True
        extent += step * (size - 1)
    return False


def _hint(size: Any) -> int:
    known = size if isinstance(size, int) else size.node.hint
    return 2 if known is None else known

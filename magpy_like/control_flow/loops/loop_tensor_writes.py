"""Tensors that iterations write into.

The program has created such a tensor before the loop, and nothing else refers to it or to a view of
it. So it can be carried as if each iteration created a new tensor. If each iteration only writes
its own row, the rows are gathered instead, and written together after the loop.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from magpy_like.monitor.context import Context
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.lists.loop_ranges import (
    compute_lifted,
    constant_offset,
    trip_count,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable, Split
from magpy_like.split_reasons import SplitCause
from magpy_like.torch_compat.tensor_memory import storage_use_count


class ExternalWrite(Split):
    """An isolated path writes into a tensor that it has not created."""

    def __init__(self, cause: SplitCause, tensor: torch.Tensor) -> None:
        super().__init__(*cause)
        self.tensor = tensor
        """The tensor, or a fake one for the same memory."""


def is_unshared(rec: Recording, values: tuple[Any, ...], slot: int) -> bool:
    """True if the program has created the tensor in a slot, and nothing else refers to it.

    Reference counts decide: call it with no more references to the tensor than those of the frame,
    of its state and of ``values``.
    """
    tensor = values[slot]
    if type(tensor) is not torch.Tensor or rec.variables.node(tensor) is not None:
        return False
    node = rec.operators.nodes.node_of(tensor)
    if node is None or node.target is operator.getitem or tensor.requires_grad:
        return False
    if tensor.layout is not torch.strided or tensor._is_view() or not tensor.is_contiguous():
        return False
    # References from the frame, its state, these values, this variable, and as an argument.
    if sys.getrefcount(tensor) > 5:
        return False
    storage = tensor.untyped_storage()
    return storage_use_count(storage._cdata) <= 2  # the tensor's and this one


@dataclass(frozen=True)
class RowWrite:
    """The row that an iteration writes: a tensor's elements at one index of a dimension."""

    node: fx.Node
    """The operator that writes it."""
    dim: int
    offset: int
    """The row's index minus the iteration's."""
    reads: tuple[tuple[fx.Node, int], ...] = ()
    """The operators that read rows of the tensor, each with the row's index minus the
    iteration's."""

    def iterations_ago(self, offset: int, step: int) -> int:
        """Number of iterations since the row at ``offset`` was written; -1 if none has written
        it."""
        ago, rest = divmod(self.offset - offset, step)
        return -1 if rest else max(ago, -1)


@dataclass
class CarriedRow:
    """A row that an earlier iteration has written."""

    initial: fx.Node
    """The row before the loop."""
    symbol: fx.Node
    """Its node in the body."""
    result: Any = None
    """The node that the next iteration receives."""


def rows_of_all(
    context: Context, bounds: tuple[int, int, int], offset: int, size: int, times: int = 1
) -> slice:
    """The indices ``times * i + offset`` of all iterations ``i``, in ascending order.

    Guards that they are in range.

    Args:
        size: the number of rows.

    Raises:
        Split: one of them is out of range in this call, or negative.
    """
    start, _, step = bounds
    count = trip_count(context, bounds)
    by = step * times
    steps = compute_lifted(
        context, operator.mul, compute_lifted(context, operator.sub, count, 1), by
    )
    first = _sum(
        context,
        compute_lifted(context, operator.mul, start, times) if times != 1 else start,
        offset,
    )
    last = compute_lifted(context, operator.add, first, steps)
    low, high = (first, last) if by > 0 else (last, first)
    if low < 0 or high >= size:
        raise LoopNotMergeable("iterations read rows that are out of range or counted from the end")
    context.lifted.guards.require_truth(operator.ge, (low, 0))
    context.lifted.guards.require_truth(operator.lt, (high, size))
    return slice(low, _sum(context, high, 1), abs(step))


def _sum(context: Context, number: int, more: int) -> int:
    return (
        compute_lifted(context, operator.add, number, more)
        if more or context.lifted.any_lifted((more,))
        else number
    )


def written_row(symbol: fx.Node, index: fx.Node) -> RowWrite | None:
    """The one row of a tensor that an iteration writes, at a constant distance from its ``index``;
    None if it has other uses of the tensor than writing that row and reading such rows.

    Args:
        symbol: the node of the tensor in the body.
    """
    rows: dict[fx.Node, tuple[int, int] | None] = {}
    for user in symbol.users:
        if getattr(user.target, "__name__", "") not in ("getitem", "setitem"):
            return None
        tensor, key, *value = user.args
        if tensor is not symbol or any(not is_instance(v, fx.Node) or v is symbol for v in value):
            return None
        rows[user] = _row_at(key, index)
    writes = [user for user in rows if len(user.args) == 3]
    if len(writes) != 1 or None in rows.values():
        return None
    (node,) = writes
    found = {user: row for user, row in rows.items() if row is not None}
    dim, offset = found.pop(node)
    if any(other != dim for other, _ in found.values()):
        return None
    return RowWrite(node, dim, offset, tuple((user, at) for user, (_, at) in found.items()))


def _row_at(key: Any, index: fx.Node) -> tuple[int, int] | None:
    """The dimension that a key indexes, and the position there minus ``index``; None for a key
    that selects something else than one row at a constant distance."""
    parts = key if is_instance(key, tuple) else (key,)
    dims = [i for i, part in enumerate(parts) if part != slice(None)]
    if len(dims) != 1:
        return None
    offset = constant_offset(index, parts[dims[0]])
    return None if offset is None else (dims[0], offset)


def check_writes(symbols: Collection[fx.Node], nodes: Iterable[fx.Node]) -> None:
    """Check that iterations overwrite each written tensor as a whole, as if each created a new one.

    Raises:
        Split: an iteration writes to a part of one.
    """
    for node in nodes:
        name = str(getattr(node.target, "__name__", node.target))
        target = node.args[0] if node.args else None
        if not is_instance(target, fx.Node) or not _is_in_place(name):
            continue
        if target in symbols and name != "setitem":
            continue
        while is_instance(target, fx.Node) and target not in symbols:
            target = target.args[0] if target.args else None
        if is_instance(target, fx.Node):
            raise LoopNotMergeable("iterations write to parts of a tensor")


def check_distinct(written: Iterable[torch.Tensor], carried: Iterable[object]) -> None:
    """Check that carried tensors share no memory with written ones.

    Raises:
        Split: one of them does.
    """
    memory = {t.untyped_storage()._cdata for t in carried if is_instance(t, torch.Tensor)}
    if any(tensor.untyped_storage()._cdata in memory for tensor in written):
        raise LoopNotMergeable("iterations carry a tensor that they write to, or a view of it")


def _is_in_place(name: str) -> bool:
    if name.startswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return name == "setitem" or name.endswith("_") or name in _AUGMENTED


_AUGMENTED = frozenset(
    ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor",
     "imatmul", "ilshift", "irshift")
)  # fmt: skip


def write_to_copies(graph: fx.GraphModule, positions: Iterable[int]) -> None:
    """Make a graph write into copies of the inputs at these positions."""
    inputs = graph.graph.find_nodes(op="placeholder")
    for position in positions:
        original = inputs[position]
        with graph.graph.inserting_after(inputs[-1]):
            copy = graph.graph.call_method("clone", (original,))
        original.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)
    graph.recompile()

"""Tensors that the rounds of a loop write into.

The program has made such a tensor before the loop and nobody else has it, nor a view of it. So a
round may be given what the one before has left, as if it had made a new tensor; and where each
round does nothing to it but to write its own row, the rows are gathered, and written at once behind
the loop.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from magpy_like.monitor.recording import Recording
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.loop_ranges import compute_lifted, constant_offset, trip_count
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable, Split
from magpy_like.split_reasons import SplitCause
from magpy_like.torch_compat.tensor_memory import storage_use_count


class Written(Split):
    """A side or round writes into a tensor that was there before."""

    def __init__(self, cause: SplitCause, tensor: torch.Tensor) -> None:
        super().__init__(*cause)
        self.tensor = tensor
        """It, or another one without data for the same memory."""


def is_nobody_elses(rec: Recording, values: tuple[Any, ...], slot: int) -> bool:
    """Whether the program has made the tensor at a place and has it there alone."""
    tensor = values[slot]
    if type(tensor) is not torch.Tensor or rec.variables.node(tensor) is not None:
        return False
    node = rec.operators.node_of(tensor)
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
class Row:
    """What a round writes of a tensor: all that has one index in a dimension."""

    node: fx.Node
    """The operator that does."""
    dim: int
    offset: int
    """By how much the index exceeds the round's."""
    reads: tuple[tuple[fx.Node, int], ...] = ()
    """The operators that read such rows of it, and by how much their indices exceed the round's."""

    def rounds_ago(self, offset: int, step: int) -> int:
        """How many rounds ago the row at an index was written; -1 for none that was before."""
        ago, rest = divmod(self.offset - offset, step)
        return -1 if rest else max(ago, -1)


@dataclass
class Past:
    """A row that an earlier round has written, and that rounds hand on to each other: as it is in
    the first round, as any round is given it, and as it leaves it."""

    first: fx.Node
    symbol: fx.Node
    result: Any = None


def rows_of_all(
    run: MonitorRun, bounds: tuple[int, int, int], offset: int, size: int, times: int = 1
) -> slice:
    """The indices that exceed so many ``times`` those of the rounds by ``offset``, from the lowest
    one up.

    Raises:
        Split: one of them is none of the ``size`` that there are.
    """
    start, _, step = bounds
    rounds = trip_count(run, bounds)
    by = step * times
    steps = compute_lifted(run, operator.mul, compute_lifted(run, operator.sub, rounds, 1), by)
    first = _sum(
        run, compute_lifted(run, operator.mul, start, times) if times != 1 else start, offset
    )
    last = compute_lifted(run, operator.add, first, steps)
    low, high = (first, last) if by > 0 else (last, first)
    if low < 0 or high >= size:
        raise LoopNotMergeable("iterations read rows that are out of range or counted from the end")
    run.lifted.guards.require_truth(operator.ge, (low, 0))
    run.lifted.guards.require_truth(operator.lt, (high, size))
    return slice(low, _sum(run, high, 1), abs(step))


def _sum(run: MonitorRun, number: int, more: int) -> int:
    return (
        compute_lifted(run, operator.add, number, more)
        if more or run.lifted.any_lifted((more,))
        else number
    )


def written_row(symbol: fx.Node, index: fx.Node) -> Row | None:
    """The one row that a round writes of the tensor that ``symbol`` stands for, at its own
    ``index``, or so far from it, when it does nothing else to it but read such rows."""
    places: dict[fx.Node, tuple[int, int] | None] = {}
    for user in symbol.users:
        if getattr(user.target, "__name__", "") not in ("getitem", "setitem"):
            return None
        tensor, key, *value = user.args
        if tensor is not symbol or any(not is_instance(v, fx.Node) or v is symbol for v in value):
            return None
        places[user] = _place(key, index)
    writes = [user for user in places if len(user.args) == 3]
    if len(writes) != 1 or None in places.values():
        return None
    (node,) = writes
    found = {user: place for user, place in places.items() if place is not None}
    dim, offset = found.pop(node)
    if any(other != dim for other, _ in found.values()):
        return None
    return Row(node, dim, offset, tuple((user, at) for user, (_, at) in found.items()))


def _place(key: Any, index: fx.Node) -> tuple[int, int] | None:
    """The dimension of which a key takes what is at ``index``, or so far from it; None where it
    takes something else."""
    parts = key if is_instance(key, tuple) else (key,)
    places = [i for i, part in enumerate(parts) if part != slice(None)]
    if len(places) != 1:
        return None
    offset = constant_offset(index, parts[places[0]])
    return None if offset is None else (places[0], offset)


def check_writes(symbols: Collection[fx.Node], nodes: Iterable[fx.Node]) -> None:
    """What a round writes into it writes as a whole: each round makes a new one of it.

    Raises:
        Split: it writes to a part.
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


def check_apart(written: Iterable[torch.Tensor], made: Iterable[object]) -> None:
    """Raises Split: rounds hand on a tensor for the memory that they write to."""
    memory = {t.untyped_storage()._cdata for t in made if is_instance(t, torch.Tensor)}
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


def on_a_copy(graph: fx.GraphModule, positions: Iterable[int]) -> None:
    """Let a graph write into copies of the inputs at these positions."""
    inputs = graph.graph.find_nodes(op="placeholder")
    for position in positions:
        given = inputs[position]
        with graph.graph.inserting_after(inputs[-1]):
            copy = graph.graph.call_method("clone", (given,))
        given.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)
    graph.recompile()

"""Heads of loops whose rounds may share one graph: over a range, or over the rows of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.monitor.gathered import Gathered
from magpy_like.monitor.split import Split
from magpy_like.native.kinds import isinstance

if TYPE_CHECKING:
    from magpy_like.monitor.instructions.step import Step
    from magpy_like.monitor.run import MonitorRun

Element = Callable[[Any, list[torch.Tensor]], Any]
"""From a round's index and the rows of tensors to what a loop takes from its iterator."""

OVER_ROWS: dict[Any, Element] = {
    iter: lambda index, rows: rows[0],
    enumerate: lambda index, rows: (index, rows[0]),
    zip: lambda index, rows: tuple(rows),
    torch.Tensor.unbind: lambda index, rows: rows[0],
    torch.unbind: lambda index, rows: rows[0],
    reversed: lambda index, rows: rows[0],
}
"""What a loop is given by the iterators of these."""
HEADS = (range, map, *OVER_ROWS)


def over_range(index: Any, rows: list[torch.Tensor]) -> Any:
    """What it is given by that of a ``range``."""
    return index


def begins(
    run: MonitorRun, step: Step, head: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the loop over ``head(*args)`` is one operator of the graph now."""
    if run.branching is None or kwargs or not args:
        return False
    if head is range:
        if any(type(arg) is not int for arg in args):
            return False
        start, stop, by = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        return by != 0 and run.branching.at_loop(run, step, (start, stop, by), (), over_range)
    element: Element | None
    if head is map:
        head, args, element = zip, args[1:], None
    else:
        element = OVER_ROWS[head]
    if head is not zip and len(args) > 1:
        extra, args = args[1], args[:1] + args[2:]
        if len(args) > 1 or type(extra) is not int:
            return False
        if head is enumerate:
            element = _counted_from(run, extra)
        elif extra != 0:
            return False
    if head is reversed and id(args[0]) not in run.recording.operators.lists:
        return False
    if not args or not all(_has_rows(run, arg) for arg in args):
        return False
    try:
        count = reduce(lambda a, b: _smaller(run, a, b), [_rows(run, arg) for arg in args])
    except Split:
        return False
    if head is reversed:
        args = (Backwards(args[0]),)
    return run.branching.at_loop(run, step, (0, count, 1), tuple(args), element)


def _counted_from(run: MonitorRun, start: int) -> Element:
    return lambda index, rows: (computed(run, operator.add, index, start), rows[0])


def computed(run: MonitorRun, operation: Callable[..., Any], *operands: Any) -> Any:
    """``operation(*operands)``, lifted if an operand is."""
    value = operation(*operands)
    if not run.lifted.any(operands):
        return value
    found = run.lifted.compute(operation, operands, value)
    return value if found is None else found


_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Backwards:
    """A list of the graph, of which a loop is given the last element first."""

    rows: Any


def _has_rows(run: MonitorRun, value: Any) -> bool:
    """Whether a loop may be given the rows of a tensor, or the elements of a list of the graph."""
    found = run.recording.operators.lists.get(id(value))
    if isinstance(found, Gathered):
        return not found.by_data and found.is_whole()
    return type(value) in _PLAIN and value.dim() > 0


def _rows(run: MonitorRun, tensor: Any) -> Any:
    """How many rows there are, lifted if that varies.

    Raises:
        Split: data decides it.
    """
    found = run.recording.operators.lists.get(id(tensor))
    if isinstance(found, Gathered):
        return found.count
    if run.recording.operators.has_data_shape(tensor):
        raise Split("data decides how many rows there are")
    twin = run.recording.twin_of(tensor)
    count: int = tensor.shape[0]
    return count if twin is None else run.lifted.pair(count, twin.shape[0])


def _smaller(run: MonitorRun, one: int, other: int) -> int:
    return one if one is other else computed(run, min, one, other)


def added_to(index: fx.Node, node: Any) -> int | None:
    """The constant that has been added to ``index`` to make ``node``; None if it is no such sum."""
    if node is index:
        return 0
    if isinstance(node, fx.Node) and node.target in _SUMS and len(node.args) == 2:
        left, right = node.args
        if node.target is operator.add and type(left) is int:
            left, right = right, left
        before = added_to(index, left) if type(right) is int else None
        if before is not None:
            return before + (right if node.target is operator.add else -right)
    return None


_SUMS = (operator.add, operator.sub)

"""Heads of loops whose rounds may share one graph: over a range, or over the rows of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.split import Split

if TYPE_CHECKING:
    from magpy_like.monitor.instructions import Step
    from magpy_like.monitor.run import MonitorRun

HEADS: dict[Any, Callable[[int, list[torch.Tensor]], Any]] = {
    range: lambda index, rows: index,
    iter: lambda index, rows: rows[0],
    enumerate: lambda index, rows: (index, rows[0]),
    zip: lambda index, rows: tuple(rows),
}
"""What a loop is given by the iterators of these, from a round's index and the rows of tensors."""


def begins(
    run: MonitorRun, step: Step, head: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the loop over ``head(*args)`` is one operator of the graph now."""
    if run.branching is None or kwargs or not args or (head is enumerate and len(args) > 1):
        return False
    if head is range:
        if any(type(arg) is not int for arg in args):
            return False
        start, stop, by = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        return by != 0 and run.branching.at_loop(run, step, (start, stop, by), (), HEADS[head])
    if any(type(arg) not in _PLAIN or not arg.dim() for arg in args):
        return False
    try:
        count = reduce(lambda a, b: _smaller(run, a, b), [_rows(run, arg) for arg in args])
    except Split:
        return False
    return run.branching.at_loop(run, step, (0, count, 1), args, HEADS[head])


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _rows(run: MonitorRun, tensor: torch.Tensor) -> int:
    """How many rows there are, lifted if that varies.

    Raises:
        Split: data decides it.
    """
    if run.recording.operators.has_data_shape(tensor):
        raise Split("data decides how many rows there are")
    twin = run.recording.twin_of(tensor)
    count: int = tensor.shape[0]
    return count if twin is None else run.lifted.pair(count, twin.shape[0])


def _smaller(run: MonitorRun, one: int, other: int) -> int:
    if one is other or not run.lifted.any((one, other)):
        return min(one, other)
    found = run.lifted.compute(min, (one, other), min(one, other))
    return min(one, other) if found is None else found

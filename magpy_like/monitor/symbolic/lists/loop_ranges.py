"""Iterators of loops that may become operators: ranges, and rows of tensors or lists."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.monitor.symbolic.lists.graph_lists import GraphList, LiftedRange
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable, Split

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step

    Token = tuple[Callable[..., Any], Any]

Element = Callable[[Any, list[torch.Tensor]], Any]
"""Returns the element of a loop's iterator for an index and the rows of tensors."""

ROW_ELEMENTS: dict[Any, Element] = {
    iter: lambda index, rows: rows[0],
    enumerate: lambda index, rows: (index, rows[0]),
    torch.Tensor.unbind: lambda index, rows: rows[0],
    torch.unbind: lambda index, rows: rows[0],
    reversed: lambda index, rows: rows[0],
}
"""Functions that create iterators over rows, and the iterators' elements."""
LOOP_FUNCTIONS = (range, map, zip, *ROW_ELEMENTS)


def index_element(index: Any, rows: list[torch.Tensor]) -> Any:
    """The element of a ``range``'s iterator."""
    return index


def begin_loop(
    context: Context, step: Step, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Try to make the loop over ``function(*args)`` an operator; True if that succeeds."""
    if context.branching is None or kwargs or not args:
        return False
    if function is range:
        bounds = _range_bounds(args)
        return bounds is not None and context.branching.at_loop(
            context, step, bounds, (), index_element
        )
    element: Element | None
    if function is map:
        function, args, element = zip, args[1:], None
    elif function is zip:
        element = _element_of_several(context, args)
    else:
        element = ROW_ELEMENTS[function]
    if function is not zip and len(args) > 1:
        extra, args = args[1], args[:1] + args[2:]
        if len(args) > 1 or type(extra) is not int:
            return False
        if function is enumerate:
            element = _enumerated_from(context, extra)
        elif extra != 0:
            return False
    if function is reversed and id(args[0]) not in context.recording.operators.lists:
        return False
    if not args or not all(
        _can_iterate_rows(context, a) or (function is zip and _lifted_range(context, a))
        for a in args
    ):
        return False
    try:
        count = reduce(
            lambda a, b: _minimum(context, a, b), [_row_count(context, arg) for arg in args]
        )
    except Split:
        return False
    if function is reversed:
        args = (ReversedRows(args[0]),)
    rows = tuple(arg for arg in args if _lifted_range(context, arg) is None)
    return context.branching.at_loop(context, step, (0, count, 1), rows, element)


def _range_bounds(args: Sequence[Any]) -> tuple[int, int, int] | None:
    """Start, stop and step of ``range(*args)``."""
    if not 0 < len(args) < 4 or any(type(arg) is not int for arg in args):
        return None
    start, stop, by = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    return (start, stop, by) if by != 0 else None


def _lifted_range(context: Context, value: Any) -> LiftedRange | None:
    found = context.recording.operators.lists.get(id(value))
    return found if is_instance(found, LiftedRange) else None


def _element_of_several(context: Context, args: Sequence[Any]) -> Element:
    """The element of ``zip(*args)``."""
    numbers = [_lifted_range(context, arg) for arg in args]

    def element(index: Any, rows: list[torch.Tensor]) -> Any:
        remaining = iter(rows)
        return tuple(
            next(remaining) if found is None else _range_element(context, found.bounds, index)
            for found in numbers
        )

    return element


def _range_element(context: Context, bounds: tuple[int, int, int], index: Any) -> Any:
    start, _, by = bounds
    steps = index if by == 1 else compute_lifted(context, operator.mul, index, by)
    return (
        steps if _is_zero(context, start) else compute_lifted(context, operator.add, start, steps)
    )


def _is_zero(context: Context, number: int) -> bool:
    return number == 0 and not context.lifted.any_lifted((number,))


def record_range(
    context: Context, step: Step, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token | None:
    """The token of a call that creates a lifted range, or its reverse iterator, for ``zip`` only;
    None for any other call."""
    if (
        context.branching is None
        or context.isolation.branch_run is not None
        or kwargs
        or function not in (range, reversed)
    ):
        return None
    if function is range:
        bounds = _range_bounds(args)
    else:
        found = _lifted_range(context, args[0]) if len(args) == 1 else None
        bounds = (
            None
            if found is None or found.bounds[2] != 1
            else reversed_bounds(context, found.bounds)
        )
    if (
        bounds is None
        or context.lifted.any_lifted(bounds[2:])
        or not context.lifted.any_lifted(bounds)
    ):
        return None
    if not context.lifted.guards.are_computable_at_entry(bounds):
        return None
    if not context.branching.is_consumed_at_once(
        step, (zip,) if function is reversed else (zip, reversed)
    ):
        return None
    return _finish_range, bounds


def _finish_range(context: Context, bounds: tuple[int, int, int], result: Any) -> None:
    lists = context.recording.operators.lists
    lists[id(result)] = LiftedRange(result, bounds, lambda: context.lifted.specialize(bounds))


def reversed_bounds(context: Context, bounds: tuple[int, int, int]) -> tuple[int, int, int]:
    """The bounds of the reversed range, for one of step 1."""
    start, stop, _ = bounds
    return (
        compute_lifted(context, operator.sub, stop, 1),
        compute_lifted(context, operator.sub, start, 1),
        -1,
    )


def _enumerated_from(context: Context, start: int) -> Element:
    return lambda index, rows: (compute_lifted(context, operator.add, index, start), rows[0])


def compute_lifted(context: Context, operation: Callable[..., Any], *operands: Any) -> Any:
    """``operation(*operands)``, lifted if an operand is."""
    value = operation(*operands)
    if not context.lifted.any_lifted(operands):
        return value
    found = context.lifted.arithmetic.compute(operation, operands, value)
    return value if found is None else found


def trip_count(context: Context, bounds: tuple[int, int, int]) -> int:
    """The trip count, lifted if a bound is."""
    start, stop, step = bounds
    if start == 0 and step == 1 and not context.lifted.any_lifted((start,)):
        return stop
    if step == 1:
        return compute_lifted(context, operator.sub, stop, start)
    distance = compute_lifted(context, operator.sub, start, stop)
    return compute_lifted(
        context, operator.neg, compute_lifted(context, operator.floordiv, distance, step)
    )


_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class ReversedRows:
    """A list of the graph, iterated in reverse."""

    rows: Any


def _can_iterate_rows(context: Context, value: Any) -> bool:
    """True if a loop may iterate over a tensor's rows, or a list of the graph."""
    found = context.recording.operators.lists.get(id(value))
    if is_instance(found, GraphList):
        return not found.has_data_dependent_length and found.is_unchanged()
    return type(value) in _PLAIN and value.dim() > 0


def _row_count(context: Context, tensor: Any) -> Any:
    """The number of rows, lifted if it varies.

    Raises:
        Split: it depends on data.
    """
    found = context.recording.operators.lists.get(id(tensor))
    if is_instance(found, GraphList):
        return found.count
    if is_instance(found, LiftedRange):
        return trip_count(context, found.bounds)
    if context.recording.operators.has_data_dependent_shape(tensor):
        raise LoopNotMergeable("the number of rows depends on data")
    twin = context.recording.sizes.twin_of(tensor)
    count: int = tensor.shape[0]
    return count if twin is None else context.lifted.symbolic.lift(count, twin.shape[0])


def _minimum(context: Context, one: int, other: int) -> int:
    return one if one is other else compute_lifted(context, min, one, other)


def constant_offset(index: fx.Node, node: Any) -> int | None:
    """The constant difference of ``node`` and ``index``; None if there is none."""
    if node is index:
        return 0
    if is_instance(node, fx.Node) and node.target in _SUMS and len(node.args) == 2:
        left, right = node.args
        if node.target is operator.add and type(left) is int:
            left, right = right, left
        before = constant_offset(index, left) if type(right) is int else None
        if before is not None:
            return before + (right if node.target is operator.add else -right)
    return None


_SUMS = (operator.add, operator.sub)

"""Reads at a constant distance from a loop's index: slices of tensors and elements of lists.

Examples are ``x[:, t : t + 1]`` of a tensor, ``rows[t]`` and ``rows[n - 1 - t]`` of a graph list.

The size of a slice depends on its start if the slice exceeds the tensor. If all slices of a loop
lie inside the tensor, the size is constant and a slice is recorded as ``torch.narrow``. Likewise,
the elements that are read must exist in all iterations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.monitor.calls.results.native_results import NativeCall
from magpy_like.monitor.monitor_suspension import payload_of
from magpy_like.monitor.symbolic.expressions import (
    Computed,
    Expression,
    GraphNumber,
    is_computable_at_entry,
)
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.monitor.symbolic.lists.loop_ranges import compute_lifted
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


@dataclass(frozen=True)
class Window:
    """The indices that an iteration reads of a dimension or list of length ``size``.

    They are ``times`` the loop's index plus each offset from ``begin`` up to, but without, ``end``.
    """

    size: Any
    begin: Any
    end: Any
    times: int = 1


@dataclass
class IndexedReads:
    """The reads of an iteration by its ``index``."""

    index: fx.Node
    windows: list[Window] = field(default_factory=list)
    elements: bool = False
    """Whether it reads elements of lists."""


def record_narrow(context: Context, token: Any) -> None:
    """Record the read of a slice as ``torch.narrow``, and as a window of the iteration, if an
    iteration reads a constant number of elements."""
    reads = context.isolation.branch_run.reads if context.isolation.branch_run is not None else None
    if reads is None or token is None:
        return
    call = payload_of(token)
    if not is_instance(call, NativeCall) or not call.on_graph:
        return
    tensor, key = call.args
    parts = key if type(key) is tuple else (key,)
    if any(type(part) is not slice for part in parts):
        return
    found = [i for i, part in enumerate(parts) if part != slice(None)]
    if len(found) != 1 or parts[found[0]].step not in (None, 1):
        return
    (dim,) = found
    ends = parts[dim].start, parts[dim].stop
    if any(type(number) is not int for number in ends):
        return
    (times, begin), (end_times, end) = (
        _linear_in_index(context, reads.index, number) for number in ends
    )
    if not times == end_times == 1 or context.lifted.any_lifted((begin, end)) or not begin < end:
        return
    rec, size = context.recording, tensor.shape[dim]
    twin = rec.sizes.twin_of(tensor)
    if rec.operators.has_data_dependent_shape(tensor) or (
        rec.sizes.twin is not None and twin is None
    ):
        return
    if ends[0] < 0 or ends[1] > size:
        return
    size = size if twin is None else context.lifted.symbolic.lift(size, twin.shape[dim])
    reads.windows.append(Window(size, begin, end))
    call.operation, call.args = torch.narrow, (tensor, dim, ends[0], end - begin)


def read_indexed_element(context: Context, graph_list: GraphList, key: int) -> Token | None:
    """The token of an iteration's read of a graph list at ``key``; None outside of loops."""
    reads, size = (
        context.isolation.branch_run.reads if context.isolation.branch_run is not None else None,
        len(graph_list.value),
    )
    if reads is None or graph_list.has_data_dependent_length or not -size <= key < size:
        return None
    times, offset = _linear_in_index(context, reads.index, key)
    if times is None:
        return None
    if key < 0:
        offset = _computed(context, operator.add, offset, graph_list.count)
    end = _computed(context, operator.add, offset, 1)
    reads.windows.append(Window(graph_list.count, offset, end, times))
    reads.elements = True
    operators = context.recording.operators
    return _finish_element, (
        graph_list,
        operators.numbers.value_node(key, context.recording.graph.value),
    )


def _finish_element(
    context: Context, payload: tuple[GraphList, Any], element: torch.Tensor
) -> torch.Tensor:
    assert context.branching is not None
    found = context.branching.list_element(context, *payload)
    context.account()
    return found


def _linear_in_index(context: Context, index: fx.Node, number: int) -> tuple[Any, Any]:
    """``number`` as a linear function of the index: the factor, and the offset, which does not
    depend on the loop; None twice if it is not linear."""
    return _linear_form(context, index, context.lifted.expression(number) or number) or (None, None)


def _linear_form(context: Context, index: fx.Node, part: Any) -> tuple[int, Any] | None:
    if is_instance(part, GraphNumber):
        if part.node is index:
            return 1, 0
        part = context.lifted.arithmetic.in_python.get(part.node, part)
    if not is_instance(part, Expression):
        return (0, part) if type(part) is int else None
    if is_computable_at_entry(part):
        number = context.lifted.identities.values.get(part)
        return (0, number) if type(number) is int else None
    operation = _SUMS.get(part.operation) if is_instance(part, Computed) else None
    if operation is None or not is_instance(part, Computed):
        return None
    operands = part.operands if len(part.operands) == 2 else (0, *part.operands)
    left, right = (_linear_form(context, index, operand) for operand in operands)
    if left is None or right is None:
        return None
    return operation(left[0], right[0]), _computed(context, operation, left[1], right[1])


_SUMS = {
    operator.add: operator.add, operator.iadd: operator.add,
    operator.sub: operator.sub, operator.isub: operator.sub, operator.neg: operator.sub,
}  # fmt: skip


def _computed(context: Context, operation: Any, left: Any, right: Any) -> Any:
    """A sum or difference; adding the constant 0 records nothing."""
    return (
        left
        if type(right) is int and right == 0 and not context.lifted.any_lifted((right,))
        else compute_lifted(context, operation, left, right)
    )

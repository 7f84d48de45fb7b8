"""Tensors unbound into rows along a dimension whose size varies.

The result of ``x.unbind(1)``, ``x.split(1)`` or ``x.chunk(len(x))`` is one list of the graph, over
which a loop may iterate and which an operator may join again. Any other inspection specializes the
size.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import LIST
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.lists.graph_lists import GraphList
from magpy_like.monitor.symbolic.lists.loop_ranges import compute_lifted
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


def unbind_into_list(
    context: Context, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> bool:
    """Try to make ``result`` a list of the graph; True if that succeeds."""
    name, rec = getattr(operation, "__name__", ""), context.recording
    if name not in _NAMES or kwargs.keys() - {"dim"} or context.isolation.branch_run is not None:
        return False
    tensor, *rest = args
    each, dim = (1, *rest, 0)[:2] if name == "unbind" else (*rest, 0, 0)[:2]
    dim = kwargs.get("dim", dim)
    if type(tensor) not in _PLAIN or type(dim) is not int or type(each) is not int:
        return False
    twin = rec.sizes.twin_of(tensor)
    if rec.sizes.twin is None or twin is None or rec.operators.has_data_dependent_shape(tensor):
        return False
    if context.lifted.any_lifted((dim,)) or not rec.sizes.twin.is_dynamic(twin.shape[dim]):
        return False
    count = context.lifted.symbolic.lift(tensor.shape[dim], twin.shape[dim])
    if len(result) != count or not varying_reads.has_varied(context, (count,)):
        return False
    if name == "split" and (each != 1 or context.lifted.any_lifted((each,))):
        return False
    if name == "chunk" and not (each == count and _equals_size(context, each, twin.shape[dim])):
        return False
    source = rec.graph.value(tensor)
    row: Callable[[torch.Tensor], torch.Tensor]
    if name == "unbind":
        node = rec.operators.nodes.graph.call_function(torch.unbind, (source, dim))
        row = lambda tensor: tensor.select(dim, 0)  # noqa: E731
    else:
        node = rec.operators.nodes.graph.call_function(torch.split, (source, 1, dim))
        row = lambda tensor: tensor.narrow(dim, 0, 1)  # noqa: E731
    node.meta[LIST] = True
    rec.operators.nodes.operator_count += 1
    rec.operators.lists[id(result)] = GraphList(
        result,
        node,
        count,
        rec.sizes.twin.apply(row, twin),
        lambda: context.lifted.specialize((count,)),
    )
    return True


_NAMES = ("unbind", "split", "chunk")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _equals_size(context: Context, number: int, size: torch.SymInt) -> bool:
    twin = context.lifted.twin(number)
    return is_instance(twin, torch.SymInt) and context.lifted.guards.require_symbolic(twin == size)


def slice_list(context: Context, graph_list: GraphList, key: slice) -> Token | None:
    """The token of a slice of a list of the graph, such as ``rows[::-1]`` or ``rows[1:]``, if the
    result is such a list too; else None."""
    ends = key.start, key.stop, key.step
    plain = all(
        type(end) in (int, types.NoneType) for end in ends
    ) and not context.lifted.any_lifted(ends)
    if not plain or not graph_list.is_unchanged() or graph_list.has_data_dependent_length:
        return None
    if key == _BACKWARDS:
        return _finish_reversed, graph_list
    if key == _FIRST and graph_list.elements_are_new and graph_list.is_never_empty:
        graph_list.know(context.recording.operators, 0)
        return _finish_first, None
    omitted = key.start or 0, -(key.stop or 0)
    if (
        min(omitted) < 0
        or key.stop == 0
        or key.step is not None
        or context.isolation.branch_run is not None
    ):
        return None
    least = sum(omitted) + 1  # an empty list has other properties, too
    if len(graph_list.value) < least:
        return None
    context.lifted.guards.require_truth(operator.ge, (graph_list.count, least))
    return _finish_slice, (
        graph_list,
        key,
        compute_lifted(context, operator.sub, graph_list.count, least - 1),
    )


_BACKWARDS, _FIRST = slice(None, None, -1), slice(None, 1, None)


def _finish_reversed(context: Context, graph_list: GraphList, result: Any) -> None:
    """Register ``result``, a reversed list of the graph."""
    operators = context.recording.operators
    _register_list(
        context,
        graph_list,
        operators.control.add_reversed(graph_list.node),
        graph_list.count,
        result,
    )


def _finish_first(context: Context, _: None, result: Any) -> None:
    """A list of one tensor is an ordinary list."""


def _finish_slice(context: Context, payload: tuple[GraphList, slice, Any], result: Any) -> None:
    graph_list, key, count = payload
    node = context.recording.operators.nodes.graph.call_function(
        operator.getitem, (graph_list.node, key)
    )
    node.meta[LIST] = True
    _register_list(context, graph_list, node, count, result)


def finish_copy(context: Context, payload: tuple[GraphList, type], result: Any) -> None:
    """Register ``result``, a list or tuple of the elements of a list of the graph."""
    graph_list, kind = payload
    node = context.recording.operators.nodes.graph.call_function(kind, (graph_list.node,))
    node.meta[LIST] = True
    _register_list(context, graph_list, node, graph_list.count, result)


def _register_list(
    context: Context, graph_list: GraphList, node: fx.Node, count: Any, result: Any
) -> None:
    if result is not graph_list.value:  # a tuple of a tuple
        context.recording.operators.lists[id(result)] = GraphList(
            result,
            node,
            count,
            graph_list.twin,
            graph_list.specialize_length,
            graph_list.elements_are_new,
        )

"""Loops on a tensor's value, as one operator of the graph: ``while_loop`` (MagPy, section 6.2.2).

One iteration runs in isolation, on placeholders for all values that the previous iteration may
leave, and its nodes become the operator's body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.post_dominators import can_reach
from magpy_like.control_flow.paths.body_nodes import erase, external_nodes, without_constants
from magpy_like.control_flow.paths.frame_locations import (
    FrameLocation,
    OperatorOutput,
    value_at,
    with_value,
)
from magpy_like.control_flow.paths.path_ends import PathEnd, begin_branch
from magpy_like.control_flow.paths.shared_parts import OperatorTools
from magpy_like.control_flow.paths.symbolic_sizes import check_twins
from magpy_like.control_flow.paths.value_comparison import check_carried, is_unchanged
from magpy_like.graph_operators.node_metadata import TWIN
from magpy_like.logs import topic
from magpy_like.monitor.context import Context
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import GraphNumber, is_number
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable, Split
from magpy_like.splitting.frame_state import FrameState

_log = topic("splits")


def find_loop(
    tools: OperatorTools, context: Context, state: FrameState, until: int
) -> tuple[bool, Sequence[tuple[OperatorOutput, fx.Node]]] | None:
    """Record the loop whose condition is the branch at which a frame is.

    Args:
        until: the branch's join point.

    Returns:
        The value of the condition with which the loop continues, and the operator's results. None
        if neither branch leads back, or if the iterations differ.
    """
    at = state.instruction
    for stays in (True, False):
        begin, leave = begin_branch(state, stays).offset, begin_branch(state, not stays).offset
        if leave != until or not can_reach(state.code, begin, at.offset, until):
            continue
        carried = [FrameLocation(False, len(state.stack) - 1)]
        known = 0
        while known < len(carried):
            known = len(carried)
            try:
                found = _iterate(tools, context, state, until, stays, carried)
            except Split as why:
                _log.info("%s is no loop: %s", state.where, why)
                break
            finally:
                context.account()
            if found is not None:
                return stays, found
    return None


def _iterate(
    tools: OperatorTools,
    context: Context,
    state: FrameState,
    until: int,
    stays: bool,
    carried: list[FrameLocation],
) -> Sequence[tuple[OperatorOutput, fx.Node]] | None:
    """Run one isolated iteration, for any values at the ``carried`` locations.

    Returns:
        The operator's results; None if the iteration changes further locations, which are added to
        ``carried``.

    Raises:
        Split: the branch is not the condition of a loop whose iterations record the same graph.
    """
    rec = context.recording
    first = [value_at(state, location) for location in carried]
    twins = [_twin_of(context, value) for value in first]
    symbols = [
        rec.operators.control.add_symbol(is_number(value), twin)
        for value, twin in zip(first, twins, strict=True)
    ]
    begun, end = state, None
    values = []
    try:
        for location, value, symbol in zip(carried, first, symbols, strict=True):
            values.append(_placeholder(tools, context, value, symbol))
            begun = with_value(begun, location, values[-1])
        begin = begin_branch(begun, stays)
        end = tools.paths.explore(context, begin, until, state.instruction.offset)
        if not end.is_at_head:
            raise LoopNotMergeable("the body does not return to the condition")
        after = replace(state, locals=end.locals, stack=end.stack)
        further = _changed_locations(begun, after, carried, rec)
        if further:
            carried += further
            return None
        results = [value_at(after, location) for location in carried]
        for value, result, twin in zip(values, results, twins, strict=True):
            check_carried(value, result)
            if is_instance(twin, torch.Tensor):
                check_twins(context, twin, _twin_of(context, result))
        nodes = _add_while_loop(context, stays, first, symbols, end, results)
    finally:
        erase(rec, end.nodes if end is not None else [])
        erase(rec, symbols)
    outputs = _outputs(carried, first)
    return list(zip(outputs, nodes, strict=True))[1:]  # the condition is popped at the exit


def _changed_locations(
    before: FrameState, after: FrameState, carried: Sequence[FrameLocation], rec: Recording
) -> list[FrameLocation]:
    """The live locations that an iteration has changed and that are not yet carried."""
    live = live_locals(after.code, after.offset)
    locations = [FrameLocation(True, slot) for slot in live]
    locations += [FrameLocation(False, i) for i in range(len(after.stack))]
    return [
        location
        for location in locations
        if location not in carried
        and not is_unchanged(value_at(before, location), value_at(after, location), rec)
    ]


def _placeholder(tools: OperatorTools, context: Context, value: Any, symbol: fx.Node) -> Any:
    """A placeholder tensor, or a lifted number, for any value that the loop may carry there."""
    if is_number(value):
        return context.lift(value, GraphNumber(symbol))
    if not is_instance(value, torch.Tensor):
        raise LoopNotMergeable(f"a {type(value).__qualname__} differs between iterations")
    return tools.placeholders.any_like(context, value, symbol, value.requires_grad)


def _twin_of(context: Context, value: Any) -> Any:
    """The symbolic twin of a carried tensor, or an example of a carried number.

    Raises:
        Split: the sizes are not known.
    """
    rec = context.recording
    if rec.sizes.twin is None or not is_instance(value, torch.Tensor):
        return type(value)(value) if is_number(value) else None
    twin = rec.graph.value(value).meta.get(TWIN)
    if twin is None:
        raise LoopNotMergeable("the sizes of a loop-carried tensor are unknown")
    return twin


def _add_while_loop(
    context: Context,
    stays: bool,
    first: Sequence[Any],
    symbols: Sequence[fx.Node],
    end: PathEnd,
    results: Sequence[Any],
) -> Sequence[fx.Node]:
    """Add the operator to the graph.

    Args:
        stays: the value of the condition with which the loop continues.
        first: the carried values before the loop; the condition comes first.
        symbols: the nodes of these values in the body.
        results: the carried values after one iteration.

    Returns:
        The nodes of its results, one for each carried value.
    """
    rec, operators = context.recording, context.recording.operators
    returned = [operators.numbers.value_node(value, rec.graph.value) for value in results]
    end.nodes = without_constants(rec, end.nodes)
    outside = external_nodes(end.nodes, returned, {*end.nodes, *symbols})
    inputs = [*symbols, *outside]
    graphs = [
        operators.control.condition_graph(inputs, stays),
        operators.control.subgraph(inputs, end.nodes, returned),
    ]
    numbers = [is_number(value) for value in first]
    initial = tuple(operators.numbers.value_node(value, rec.graph.value) for value in first)
    nodes = operators.control.add_control(
        torch.ops.higher_order.while_loop, (), graphs, (initial, tuple(outside)), numbers
    )
    for node, symbol, number in zip(nodes, symbols, numbers, strict=True):
        if TWIN in symbol.meta and not number:
            node.meta[TWIN] = symbol.meta[TWIN]
    return nodes


def _outputs(carried: Sequence[FrameLocation], first: Sequence[Any]) -> list[OperatorOutput]:
    """The operator's outputs. A carried tensor may be any of those from before the loop."""
    sources = [value for value in first[1:] if is_instance(value, torch.Tensor)]
    return [
        OperatorOutput(location, (value, value), [] if is_number(value) else sources)
        for location, value in zip(carried, first, strict=True)
    ]

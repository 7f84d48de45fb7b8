"""Loops on a tensor's value become one operator, ``while_loop`` (MagPy, section 6.2.2).

One round runs beside the program, for any tensors and numbers that the round before may have
left, and what it records becomes the operator's body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from magpy_like.bytecode.data_flow import live_locals
from magpy_like.bytecode.post_dominators import can_reach
from magpy_like.control_flow.carried_places import (
    End,
    Output,
    Place,
    at_place,
    begin_side,
    check_carried,
    erase,
    unchanged,
    with_value,
)
from magpy_like.control_flow.for_loop import Explorer, check_twins
from magpy_like.logs import topic
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.symbolic.expressions import GraphNumber, is_number
from magpy_like.monitor.symbolic.symbolic_twin import TWIN
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable, Split
from magpy_like.splitting.frame_state import FrameState

_log = topic("splits")


def find_loop(
    explorer: Explorer, run: MonitorRun, state: FrameState, until: int
) -> tuple[bool, Sequence[tuple[Output, fx.Node]]] | None:
    """A side that leads back to the branch, as the body of one ``while_loop``: whether it is the
    one where the condition holds, and what the operator gives the program.

    None when neither does, or when the rounds are not all alike.
    """
    at = state.instruction
    for stays in (True, False):
        begin, leave = begin_side(state, stays).offset, begin_side(state, not stays).offset
        if leave != until or not can_reach(state.code, begin, at.offset, until):
            continue
        carried = [Place(False, len(state.stack) - 1)]
        known = 0
        while known < len(carried):
            known = len(carried)
            try:
                found = _round(explorer, run, state, until, stays, carried)
            except Split as why:
                _log.info("%s is no loop: %s", state.where, why)
                break
            finally:
                run.account()
            if found is not None:
                return stays, found
    return None


def _round(
    explorer: Explorer,
    run: MonitorRun,
    state: FrameState,
    until: int,
    stays: bool,
    carried: list[Place],
) -> Sequence[tuple[Output, fx.Node]] | None:
    """One round of a loop, for any values at the places that are ``carried`` from one to the
    next. None when it changes further places, which are added to those.

    Raises:
        Split: it is no round of a loop.
    """
    rec, operators = run.recording, run.recording.operators
    first = [at_place(state, place) for place in carried]
    twins = [_twin_of(run, value) for value in first]
    symbols = [
        operators.add_symbol(is_number(value), twin)
        for value, twin in zip(first, twins, strict=True)
    ]
    begun, end = state, None
    values = []
    try:
        for place, value, symbol in zip(carried, first, symbols, strict=True):
            values.append(_any_like(explorer, run, value, symbol))
            begun = with_value(begun, place, values[-1])
        end = explorer.explore(run, begin_side(begun, stays), until, state.instruction.offset)
        if not end.again:
            raise LoopNotMergeable("the body does not return to the condition")
        after = replace(state, locals=end.locals, stack=end.stack)
        places = [Place(True, slot) for slot in live_locals(state.code, state.offset)]
        places += [Place(False, i) for i in range(len(state.stack))]
        further = [
            place
            for place in places
            if place not in carried
            and not unchanged(at_place(begun, place), at_place(after, place))
        ]
        if further:
            carried += further
            return None
        results = [at_place(after, place) for place in carried]
        for value, result, twin in zip(values, results, twins, strict=True):
            check_carried(value, result)
            if is_instance(twin, torch.Tensor):
                check_twins(run, twin, _twin_of(run, result))
        return _while_loop(rec, stays, carried, first, symbols, end, results)
    finally:
        erase(rec, end.nodes if end is not None else [])
        erase(rec, symbols)


def _any_like(explorer: Explorer, run: MonitorRun, value: Any, symbol: fx.Node) -> Any:
    """A tensor without data, or a lifted number, for any value that a loop may carry there."""
    if is_number(value):
        return run.lift(value, GraphNumber(symbol))
    if not is_instance(value, torch.Tensor):
        raise LoopNotMergeable(f"a {type(value).__qualname__} differs between iterations")
    return explorer.any_tensor(run, value, symbol, value.requires_grad)


def _twin_of(run: MonitorRun, value: Any) -> Any:
    """What stands for the sizes of a tensor that rounds hand on, or for a number.

    Raises:
        Split: the sizes are not known.
    """
    rec = run.recording
    if rec.sizes.twin is None or not is_instance(value, torch.Tensor):
        return type(value)(value) if is_number(value) else None
    twin = rec.graph.value(value).meta.get(TWIN)
    if twin is None:
        raise LoopNotMergeable("the sizes of a loop-carried tensor are unknown")
    return twin


def _while_loop(
    rec: Recording,
    stays: bool,
    carried: Sequence[Place],
    first: Sequence[Any],
    symbols: Sequence[fx.Node],
    end: End,
    results: Sequence[Any],
) -> Sequence[tuple[Output, fx.Node]]:
    operators = rec.operators
    given = [operators.value_node(value, rec.graph.value) for value in results]
    end.nodes = [node for node in end.nodes if not operators.is_constant_tensor(node)]
    inside = {*end.nodes, *symbols}
    used = [n for node in end.nodes for n in node.all_input_nodes]
    used += [n for n in given if is_instance(n, fx.Node)]
    outside = list(dict.fromkeys(n for n in used if n not in inside))
    inputs = [*symbols, *outside]
    graphs = [
        operators.condition_graph(inputs, stays),
        operators.subgraph(inputs, end.nodes, given),
    ]
    numbers = [is_number(value) for value in first]
    initial = tuple(operators.value_node(value, rec.graph.value) for value in first)
    nodes = operators.add_control(
        torch.ops.higher_order.while_loop, (), graphs, (initial, tuple(outside)), numbers
    )
    for node, symbol, counts in zip(nodes, symbols, numbers, strict=True):
        if TWIN in symbol.meta and not counts:
            node.meta[TWIN] = symbol.meta[TWIN]
    sources = [value for value in first[1:] if is_instance(value, torch.Tensor)]
    outputs = [
        Output(place, (value, value), [] if number else sources)
        for place, value, number in zip(carried, first, numbers, strict=True)
    ]
    return list(zip(outputs, nodes, strict=True))[1:]  # the condition is off the stack then

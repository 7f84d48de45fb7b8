"""Rows of tensors that iterations write, one each, and that later iterations read.

No iteration receives such a tensor: its rows are gathered, and written together after the loop. A
row that later iterations read is carried to them.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from magpy_like.control_flow.loops.loop_tensor_writes import (
    CarriedRow,
    RowWrite,
    check_writes,
    rows_of_all,
    written_row,
)
from magpy_like.control_flow.paths.body_nodes import erase
from magpy_like.graph_operators.node_metadata import TWIN, WRITTEN_SHAPE
from magpy_like.monitor.symbolic.lists.loop_ranges import compute_lifted
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.control_flow.loops.loop_iteration import Iteration
    from magpy_like.control_flow.loops.loop_plan import CarriedValue


def written_rows(iteration: Iteration) -> list[tuple[CarriedValue, RowWrite, slice]]:
    """The tensors that each iteration writes in one row only, and stop carrying them.

    Returns:
        Triples: the tensor as a carried value, its row, and the indices of all iterations' rows.

    Raises:
        Split: iterations make another partial write to a tensor.
    """
    found: list[tuple[CarriedValue, RowWrite, slice]] = []
    plan, end = iteration.plan, iteration.end
    rec = plan.context.recording
    for leaf in list(plan.written):
        row = written_row(leaf.symbol, iteration.index)
        if row is None:
            if leaf.result.requires_grad:
                raise LoopNotMergeable(
                    "iterations change a tensor in place that requires gradients"
                )
            continue
        sizes, writes = list(leaf.initial.shape), row.node
        size = sizes.pop(row.dim)
        if writes.meta.get(WRITTEN_SHAPE) != torch.Size(sizes):
            raise LoopNotMergeable("iterations write rows of another shape")
        if rec.sizes.twin is not None:
            size = plan.context.lifted.symbolic.lift(size, leaf.symbol.meta[TWIN].shape[row.dim])
        at = rows_of_all(plan.context, plan.bounds, row.offset, size)
        _check_reads(iteration, leaf, row, size)
        plan.written.remove(leaf)
        # A copy: the iteration may change the written value later.
        with writes.graph.inserting_before(writes):
            value = writes.graph.call_method("clone", (writes.args[2],))
        found.append((leaf, replace(row, node=value), at))
        end.nodes[end.nodes.index(writes)] = value
        erase(rec, [writes])
        _carry_rows(iteration, leaf, row, value)
    check_writes([leaf.symbol for leaf in plan.written], end.nodes)
    return found


def _check_reads(iteration: Iteration, leaf: CarriedValue, row: RowWrite, size: int) -> None:
    """Check the reads of a tensor that iterations write row by row.

    Raises:
        Split: an iteration reads more than rows that stay unchanged while it runs, or gradients
            flow through the rows, which eager mode may refuse.
    """
    plan = iteration.plan
    if row.reads and leaf.result.requires_grad:
        raise LoopNotMergeable(
            "iterations read a tensor that they write to and that requires gradients"
        )
    check_writes([leaf.symbol], [node for node in iteration.end.nodes if node is not row.node])
    for _, offset in row.reads:
        rows_of_all(plan.context, plan.bounds, offset, size)
        if row.iterations_ago(offset, plan.bounds[2]) == 0:
            raise LoopNotMergeable("iterations read the row that they write")


def _carry_rows(iteration: Iteration, leaf: CarriedValue, row: RowWrite, value: fx.Node) -> None:
    """Carry the rows that iterations read from the iterations that have written them, or from
    before the loop.

    Args:
        value: the row that this iteration writes.
    """
    plan, end = iteration.plan, iteration.end
    context, operators = plan.context, plan.context.recording.operators
    graph, first, step = operators.nodes.graph, leaf.initial, plan.bounds[2]
    tensor = operators.numbers.value_node(first, context.recording.graph.value)
    ago = {node: row.iterations_ago(offset, step) for node, offset in row.reads}
    carried: list[CarriedRow] = []
    for distance in range(1, max(ago.values(), default=0) + 1):
        at = compute_lifted(context, operator.add, plan.bounds[0], row.offset - distance * step)
        number = operators.numbers.value_node(at, context.recording.graph.value)
        begin = graph.call_function(torch.select, (tensor, row.dim, number))
        carried.append(CarriedRow(_dense(graph, begin), operators.control.add_symbol(number=False)))
    if carried:
        written = graph.call_method("to", (value, first.device, first.dtype))
        end.nodes += [written, _dense(graph, written)]
    for past, result in zip(carried, [end.nodes[-1], *(p.symbol for p in carried)], strict=False):
        past.result = result
    for node, distance in ago.items():
        if distance > 0:
            node.replace_all_uses_with(carried[distance - 1].symbol)
            end.nodes.remove(node)
            erase(context.recording, [node])
        else:
            node.update_arg(0, tensor)
    iteration.rows += carried


def _dense(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A contiguous copy, with the strides of a new tensor."""
    return graph.call_method("clone", (node,), {"memory_format": torch.contiguous_format})

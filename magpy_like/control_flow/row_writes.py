"""Rows of tensors that the rounds of a loop write, one each, and read again later.

No round is handed such a tensor: its rows are gathered, and written at once behind the loop. A row
that rounds have written and later ones read is handed on from round to round.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from magpy_like.control_flow.carried_places import End, erase
from magpy_like.control_flow.loop_tensor_writes import (
    Past,
    Row,
    check_writes,
    rows_of_all,
    written_row,
)
from magpy_like.monitor.operator_graph.graph_nodes import WRITTEN_FORM
from magpy_like.monitor.symbolic.loop_ranges import compute_lifted
from magpy_like.monitor.symbolic.symbolic_twin import TWIN
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.control_flow.for_loop import Leaf, Loop


def filled_rows(loop: Loop, end: End) -> list[tuple[Leaf, Row, slice]]:
    """The tensors of which each round does but write one row, that row, and which ones all
    rounds write; no round is handed these.

    Raises:
        Split: rounds write into a tensor otherwise than as a whole.
    """
    found: list[tuple[Leaf, Row, slice]] = []
    rec = loop.run.recording
    for leaf in list(loop.written):
        row = written_row(leaf.symbol, loop.index)
        if row is None:
            if leaf.result.requires_grad:
                raise LoopNotMergeable(
                    "iterations change a tensor in place that requires gradients"
                )
            continue
        sizes, writes = list(leaf.first.shape), row.node
        size = sizes.pop(row.dim)
        if writes.meta.get(WRITTEN_FORM) != torch.Size(sizes):
            raise LoopNotMergeable("iterations write rows of another shape")
        if rec.sizes.twin is not None:
            size = loop.run.lifted.symbolic.lift(size, leaf.symbol.meta[TWIN].shape[row.dim])
        at = rows_of_all(loop.run, loop.bounds, row.offset, size)
        _check_reads(loop, leaf, row, size, end)
        loop.written.remove(leaf)
        with writes.graph.inserting_before(writes):  # whatever becomes of it in the round
            value = writes.graph.call_method("clone", (writes.args[2],))
        found.append((leaf, replace(row, node=value), at))
        end.nodes[end.nodes.index(writes)] = value
        erase(rec, [writes])
        _hand_on(loop, leaf, row, value, end)
    check_writes([leaf.symbol for leaf in loop.written], end.nodes)
    return found


def _check_reads(loop: Loop, leaf: Leaf, row: Row, size: int, end: End) -> None:
    """
    Raises:
        Split: a round does not only read rows that stay as they are while it runs, or gradients
            go through them, which eager mode may refuse.
    """
    if row.reads and leaf.result.requires_grad:
        raise LoopNotMergeable(
            "iterations read a tensor that they write to and that requires gradients"
        )
    check_writes([leaf.symbol], [node for node in end.nodes if node is not row.node])
    for _, offset in row.reads:
        rows_of_all(loop.run, loop.bounds, offset, size)
        if row.rounds_ago(offset, loop.bounds[2]) == 0:
            raise LoopNotMergeable("iterations read the row that they write")


def _hand_on(loop: Loop, leaf: Leaf, row: Row, value: fx.Node, end: End) -> None:
    """Let rounds have the rows of a tensor that they read from those which have written them,
    of which the round that runs writes ``value``, or from before the loop."""
    run, operators = loop.run, loop.run.recording.operators
    graph, first, step = operators.graph, leaf.first, loop.bounds[2]
    tensor = operators.value_node(first, run.recording.graph.value)
    ago = {node: row.rounds_ago(offset, step) for node, offset in row.reads}
    pasts: list[Past] = []
    for rounds in range(1, max(ago.values(), default=0) + 1):
        at = compute_lifted(run, operator.add, loop.bounds[0], row.offset - rounds * step)
        number = operators.value_node(at, run.recording.graph.value)
        begin = graph.call_function(torch.select, (tensor, row.dim, number))
        pasts.append(Past(_dense(graph, begin), operators.add_symbol(number=False)))
    if pasts:
        written = graph.call_method("to", (value, first.device, first.dtype))
        end.nodes += [written, _dense(graph, written)]
    for past, result in zip(pasts, [end.nodes[-1], *(p.symbol for p in pasts)], strict=False):
        past.result = result
    for node, rounds in ago.items():
        if rounds > 0:
            node.replace_all_uses_with(pasts[rounds - 1].symbol)
            end.nodes.remove(node)
            erase(run.recording, [node])
        else:
            node.update_arg(0, tensor)
    loop.pasts += pasts


def _dense(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A copy of a tensor of which the elements lie as those of a new one."""
    return graph.call_method("clone", (node,), {"memory_format": torch.contiguous_format})

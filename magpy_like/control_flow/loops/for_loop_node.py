"""The ``for_loop`` operator for a checked iteration."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from magpy_like.config import config
from magpy_like.control_flow.loops.loop_iteration import Iteration
from magpy_like.control_flow.loops.loop_plan import CarriedValue, LoopPlan
from magpy_like.control_flow.loops.loop_tensor_writes import (
    RowWrite,
    check_distinct,
    rows_of_all,
    write_to_copies,
)
from magpy_like.control_flow.loops.row_writes import written_rows
from magpy_like.control_flow.paths.body_nodes import external_nodes, without_constants
from magpy_like.control_flow.paths.symbolic_sizes import twin_of
from magpy_like.graph_operators.control_operators import for_loop
from magpy_like.graph_operators.node_metadata import LIST, NUMBER, TWIN
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.monitor.symbolic.lists.loop_ranges import compute_lifted, trip_count
from magpy_like.split_points import LoopNotMergeable


def require_two_iterations(plan: LoopPlan) -> None:
    """Guard that the trip count is at least two."""
    plan.context.lifted.guards.require_truth(
        operator.ge, (trip_count(plan.context, plan.bounds), 2)
    )


def check_windows(iteration: Iteration) -> None:
    """Check the indices at which iterations read.

    Raises:
        Split: one of them is out of range.
    """
    plan = iteration.plan
    for window in iteration.reads.windows:
        last = compute_lifted(plan.context, operator.sub, window.end, 1)
        for at in (window.begin, last):
            rows_of_all(plan.context, plan.bounds, at, window.size, window.times)


def add_for_loop(iteration: Iteration) -> tuple[list[fx.Node], list[Any]]:
    """Add the operator to the graph.

    Returns:
        The nodes of its results: one for each carried, written and final value, then one for each
        list; and the nodes of the same values in the body, one for each element of a list.

    Raises:
        Split: an operator would be slower, or cannot express a write of the iterations.
    """
    plan, end = iteration.plan, iteration.end
    rec, operators = plan.context.recording, plan.context.recording.operators
    _check_worthwhile(iteration)
    require_two_iterations(plan)
    check_windows(iteration)
    created = [leaf.result for leaf in (*plan.carried.values(), *iteration.final_values)]
    created += [tensor for appended_list in iteration.lists for tensor in appended_list.appended]
    check_distinct([leaf.result for leaf in plan.written], created)
    row_writes = written_rows(iteration)
    leaves = [*plan.inputs, *iteration.final_values]
    if plan.in_comprehension and any(leaf.slot < plan.first_location for leaf in leaves):
        raise LoopNotMergeable("a comprehension carries values between iterations")
    results = [leaf.result for leaf in leaves]
    results += [tensor for appended_list in iteration.lists for tensor in appended_list.appended]
    body_results = [operators.numbers.value_node(result, rec.graph.value) for result in results]
    body_results += [row.node for _, row, _ in row_writes]
    end.nodes = without_constants(rec, end.nodes)
    nodes = _add_operator(iteration, leaves, body_results, len(row_writes))
    nodes = nodes[len(iteration.rows) :]
    for node, twin in zip(nodes[: len(leaves)], map(twin_of, body_results), strict=False):
        if twin is not None and not node.meta[NUMBER]:
            node.meta[TWIN] = twin
    for node in nodes[len(leaves) :]:
        node.meta[LIST] = True
    rows = nodes[len(nodes) - len(row_writes) :]
    for row_write, node in zip(row_writes, rows, strict=True):
        _write_rows(plan, *row_write, node)
    return nodes[: len(nodes) - len(row_writes)], body_results


def _check_worthwhile(iteration: Iteration) -> None:
    """Check that the operator is an improvement.

    Raises:
        Split: recording each iteration is as good.
    """
    plan = iteration.plan
    few = len(iteration.end.nodes) * plan.trip_count < config.min_loop_operators
    if few and not varying_reads.has_varied(plan.context, plan.bounds):
        raise LoopNotMergeable("so few operators are faster unrolled")
    if plan.trip_count < 2:
        raise LoopNotMergeable("it has one iteration at most")


def _add_operator(
    iteration: Iteration,
    leaves: Sequence[CarriedValue],
    body_results: Sequence[Any],
    row_count: int,
) -> list[fx.Node]:
    """Add ``for_loop`` with the iteration as its body.

    Args:
        row_count: the number of tensors that are written row by row.

    Returns:
        The nodes of its results; carried rows come first.
    """
    plan, end, rows = iteration.plan, iteration.end, iteration.rows
    operators = plan.context.recording.operators
    results = [*(row.result for row in rows), *body_results]
    index, *others = iteration.symbols
    symbols = [index, *(row.symbol for row in rows), *others]
    outside = external_nodes(end.nodes, results, {*end.nodes, *symbols})
    body = operators.control.subgraph([*symbols, *outside], end.nodes, results)
    write_to_copies(body, range(1 + len(rows) + len(plan.carried), len(symbols)))

    def node_of(value: Any) -> Any:
        return operators.numbers.value_node(value, plan.context.recording.graph.value)

    bounds = tuple(map(node_of, plan.bounds))
    carried = (*(row.initial for row in rows), *(node_of(leaf.initial) for leaf in plan.inputs))
    gathered = [(tuple(map(node_of, s.initial)), len(s.appended)) for s in iteration.lists]
    gathered += [((), 1)] * row_count
    numbers = [False] * len(rows) + [is_number(leaf.result) for leaf in leaves]
    numbers += [False] * len(gathered)
    after = (bounds, carried, tuple(gathered), tuple(outside))
    return operators.control.add_control(for_loop, (), [body], after, numbers)


def _write_rows(
    plan: LoopPlan, leaf: CarriedValue, row: RowWrite, at: slice, gathered: fx.Node
) -> None:
    """Write the gathered rows of all iterations into their tensor, after the loop."""
    operators = plan.context.recording.operators

    def node_of(value: Any) -> Any:
        return operators.numbers.value_node(value, plan.context.recording.graph.value)

    key = slice(node_of(at.start), node_of(at.stop), at.step)
    if plan.bounds[2] < 0:
        gathered = operators.control.add_reversed(gathered)
    operators.control.add_row_writes(node_of(leaf.initial), row.dim, key, gathered)

"""The ``for_loop_with_exits`` operator for a checked iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.control_flow.paths.body_nodes import used_nodes, without_constants
from magpy_like.control_flow.paths.symbolic_sizes import check_twins, twin_of
from magpy_like.graph_operators.control_operators import for_loop_with_exits
from magpy_like.graph_operators.node_metadata import LIST, TWIN
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.control_flow.loops.loop_exits import LoopExits
    from magpy_like.control_flow.loops.loop_iteration import Iteration


def add_loop_with_exits(
    exits: LoopExits, iteration: Iteration, body: Sequence[fx.Node]
) -> list[fx.Node]:
    """Add the operator to the graph.

    Args:
        body: the nodes of the iteration without those of its exits.

    Returns:
        The nodes of ``exits.outputs``, then the length of each list, and the lists.

    Raises:
        Split: the sizes of an output are not known.
    """
    plan = iteration.plan
    rec, operators = plan.context.recording, plan.context.recording.operators
    iteration.end.nodes = without_constants(rec, iteration.end.nodes)
    body = without_constants(rec, body)
    symbols = iteration.symbols
    inside = {*body, *symbols}

    def node_of(value: Any) -> Any:
        return operators.numbers.value_node(value, rec.graph.value)

    results = [node_of(leaf.result) for leaf in plan.carried.values()]
    elements = [
        node_of(item) for appended_list in iteration.lists for item in appended_list.appended
    ]
    tests = [exit.test for exit in exits.exits[:-1]]
    outside: dict[fx.Node, None] = {}
    for number, exit in enumerate(exits.exits):
        exit.end.nodes = without_constants(rec, exit.end.nodes)
        exit.results = [node_of(output.values[number]) for output in exits.outputs]
        own = set(exit.end.nodes)
        used = used_nodes(exit.end.nodes, exit.results)
        exit.operands = list(dict.fromkeys(n for n in used if n in inside))
        outside |= {n: None for n in used if n not in inside and n not in own}
    used = used_nodes(body, [*results, *elements, *tests])
    outside |= {n: None for n in used if n not in inside}
    twins = [_output_twin(exits, iteration, i) for i in range(len(exits.outputs))]
    spec, parts = _describe_exits(exits, iteration, [*tests, *results])
    graphs = [operators.control.subgraph([*symbols, *outside], body, [*parts, *elements])]
    for exit in exits.exits:
        inputs = [*exit.operands, *outside]
        graphs.append(operators.control.subgraph(inputs, exit.end.nodes, exit.results))
    before = (
        tuple(map(node_of, plan.bounds)),
        spec,
        tuple(node_of(leaf.initial) for leaf in plan.carried.values()),
        tuple((tuple(map(node_of, s.initial)), len(s.appended)) for s in iteration.lists),
    )
    list_count = len(iteration.lists)
    numbers = [is_number(output.values[0]) for output in exits.outputs]
    numbers += [True] * list_count + [False] * list_count
    nodes = operators.control.add_control(
        for_loop_with_exits, before, graphs, (tuple(outside),), numbers
    )
    for node, twin in zip(nodes, twins, strict=False):
        if twin is not None:
            node.meta[TWIN] = twin
    for node in nodes[len(nodes) - list_count :]:
        node.meta[LIST] = True
    exits.element_twins = list(map(twin_of, elements))
    return nodes


def _describe_exits(
    exits: LoopExits, iteration: Iteration, results: list[Any]
) -> tuple[tuple[Any, ...], list[Any]]:
    """The operator's specification of its exits.

    Args:
        results: the tests and carried values that the body returns.

    Returns:
        For each exit the truth that leaves, the elements appended to each list by then, and where
        its operands begin among the body's results. And the results of the body, which end with the
        operands of each exit.
    """
    position = {id(value): i for i, value in enumerate(exits.lists)}
    positions = [
        position[id(iteration.slots[appended_list.slot])] for appended_list in iteration.lists
    ]
    exits.have_ends = [
        bool(appended_list.initial) or all(exit.appended[i] for exit in exits.exits)
        for appended_list, i in zip(iteration.lists, positions, strict=True)
    ]
    spec = []
    for exit in exits.exits:
        spec.append((exit.truth, tuple(exit.appended[i] for i in positions), len(results)))
        results += exit.operands
    return tuple(spec), results


def _output_twin(exits: LoopExits, iteration: Iteration, number: int) -> torch.Tensor | None:
    """The symbolic twin of an output; None for a number, and in a recording without varying sizes.

    Raises:
        Split: the exits leave sizes that differ for some values of the symbols.
    """
    context = iteration.plan.context
    if context.recording.sizes.twin is None or is_number(exits.outputs[number].values[0]):
        return None
    twins = [twin_of(exit.results[number]) for exit in exits.exits]
    if not all(is_instance(twin, torch.Tensor) for twin in twins):
        raise LoopNotMergeable("the sizes of a tensor that an iteration creates are unknown")
    first, *others = twins
    for twin in others:
        check_twins(context, first, twin)
    return first

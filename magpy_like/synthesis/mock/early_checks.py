"""Looking at speculated values inside an operator graph, before it changes anything in place.

A training step may ask whether its gradients are too large, and then changes parameters. When all
that it looks at is known before the first change, the graph itself looks, and stops there if it is
not what was speculated on: nothing has to be put back then but random generators.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from magpy_like.monitor.operator_graph.graph_nodes import AS_IS
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Computed, GraphNumber
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain, storage_of
from magpy_like.synthesis import number_source
from magpy_like.synthesis.generated_source import Source, literal
from magpy_like.synthesis.guard.guard_checks import same_list, same_scalar
from magpy_like.synthesis.mock.roll_back import EarlyMisspeculation


def check_before_writing(rec: Recording) -> bool:
    """Let the operator graph check speculated values; False where they are not known in time."""
    order = {node: i for i, node in enumerate(rec.operators.graph.nodes)}
    memory = [storage_of(node.variable) for node in rec.writes.changed_inputs()]
    before = [rec.writes.written_memory.get(where) for where in memory]
    if rec.writes.data_replaced or not all(before):
        return False
    last = min((node for node in before if node is not None), key=order.__getitem__)
    looks = []
    for expression, value, place in rec.lifted.speculated.values:
        nodes: list[fx.Node] = []
        if not _only_in_graph(expression, nodes) or any(order[n] > order[last] for n in nodes):
            return False
        nodes = list(dict.fromkeys(nodes))
        looks.append((_look(expression, value, place, nodes), tuple(nodes)))
    for look, given in reversed(looks):
        with rec.operators.graph.inserting_after(last):
            made = rec.operators.graph.call_function(look, given)
        made.meta[AS_IS] = "looks at a value that was speculated on"
    return True


def _only_in_graph(expression: Any, found: list[fx.Node]) -> bool:
    """Whether an expression is made of constants and of what the graph computes: of ``found``."""
    if is_instance(expression, GraphNumber):
        found.append(expression.node)
        return True
    if is_instance(expression, Computed):
        return all(_only_in_graph(operand, found) for operand in expression.operands)
    return is_plain(expression)


def _look(expression: Any, value: Any, place: Any, nodes: list[fx.Node]) -> Any:
    """A function of what ``nodes`` give that raises when it is not what was speculated on."""
    source = Source()
    names = {node: f"given{i}" for i, node in enumerate(nodes)}
    way = number_source.text(expression, _no_name, source.constant, names.__getitem__)
    check = source.constant(same_scalar if is_plain(value) else same_list)
    expected = literal(value) or source.constant(value, "value")
    source.emit(f"if not {check}({way}, {expected}):")
    source.emit(
        f"    raise {source.constant(EarlyMisspeculation)}({source.constant(place, 'place')})"
    )
    look = source.build("look", ", ".join(names.values()))
    look.__module__ = __name__  # graphs ask for it
    return look


def _no_name(node: Any) -> str:
    raise AssertionError("a variable from outside")

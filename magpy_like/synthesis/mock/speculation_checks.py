"""Early checks: speculated values compared inside an operator graph, before in-place changes.

A training step may read whether its gradients are too large, and then changes parameters. If all
speculated values are computed before the first change, the graph itself compares them, and raises
after a misspeculation: then only random generators must be restored.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from magpy_like.graph_operators.node_metadata import AS_IS
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Computed, GraphNumber
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain, storage_of
from magpy_like.synthesis import number_source
from magpy_like.synthesis.generated_source import Source, literal
from magpy_like.synthesis.guard.guard_checks import same_list, same_scalar
from magpy_like.synthesis.mock.roll_back import EarlyMisspeculation


def check_before_writing(rec: Recording) -> bool:
    """Insert checks of speculated values; False if one is computed after an in-place change."""
    order = {node: i for i, node in enumerate(rec.operators.nodes.graph.nodes)}
    memory = [storage_of(node.variable) for node in rec.writes.changed_inputs()]
    before = [rec.writes.written_memory.get(where) for where in memory]
    if rec.writes.data_replaced or not all(before):
        return False
    last = min((node for node in before if node is not None), key=order.__getitem__)
    checks = []
    for expression, value, position in rec.lifted.speculated.values:
        nodes: list[fx.Node] = []
        if not _only_in_graph(expression, nodes) or any(order[n] > order[last] for n in nodes):
            return False
        nodes = list(dict.fromkeys(nodes))
        checks.append((_check_function(expression, value, position, nodes), tuple(nodes)))
    for check, operands in reversed(checks):
        with rec.operators.nodes.graph.inserting_after(last):
            call = rec.operators.nodes.graph.call_function(check, operands)
        call.meta[AS_IS] = "checks a speculated value"
    return True


def _only_in_graph(expression: Any, found: list[fx.Node]) -> bool:
    """True for an expression over constants and graph numbers, which are added to ``found``."""
    if is_instance(expression, GraphNumber):
        found.append(expression.node)
        return True
    if is_instance(expression, Computed):
        return all(_only_in_graph(operand, found) for operand in expression.operands)
    return is_plain(expression)


def _check_function(expression: Any, value: Any, position: Any, nodes: list[fx.Node]) -> Any:
    """A function of the values of ``nodes`` that raises unless the expression has this value."""
    source = Source()
    names = {node: f"number{i}" for i, node in enumerate(nodes)}
    text = number_source.text(expression, _no_name, source.constant, names.__getitem__)
    check = source.constant(same_scalar if is_plain(value) else same_list)
    expected = literal(value) or source.constant(value, "value")
    source.emit(f"if not {check}({text}, {expected}):")
    source.emit(
        f"    raise {source.constant(EarlyMisspeculation)}({source.constant(position, 'position')})"
    )
    check_speculated = source.build("check_speculated", ", ".join(names.values()))
    check_speculated.__module__ = __name__  # graphs read it
    return check_speculated


def _no_name(node: Any) -> str:
    raise AssertionError("an external variable")

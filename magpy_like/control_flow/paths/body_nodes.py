"""Nodes of the operator graph that become the body of an operator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import fx

from magpy_like.monitor.recording import Recording
from magpy_like.native.instance_checks import is_instance


def last_node(rec: Recording) -> fx.Node | None:
    """The last node of the graph; None for an empty graph."""
    return next(iter(reversed(rec.operators.nodes.graph.nodes)), None)


def nodes_after(rec: Recording, last: fx.Node | None) -> list[fx.Node]:
    """The nodes recorded after ``last``, without placeholders."""
    found = []
    for node in reversed(rec.operators.nodes.graph.nodes):
        if node is last:
            break
        if node.op != "placeholder":
            found.append(node)
    return found[::-1]


def erase(rec: Recording, nodes: Sequence[fx.Node]) -> None:
    """Erase nodes, last first."""
    for node in reversed(nodes):
        rec.operators.nodes.graph.erase_node(node)


def without_constants(rec: Recording, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes that belong to a body: constant tensors become operands instead."""
    return [node for node in nodes if not rec.operators.nodes.is_constant_tensor(node)]


def used_nodes(nodes: Sequence[fx.Node], results: Sequence[Any]) -> list[fx.Node]:
    """The inputs of ``nodes``, and the nodes among ``results``; with repetitions."""
    used = [n for node in nodes for n in node.all_input_nodes]
    return used + [n for n in results if is_instance(n, fx.Node)]


def external_nodes(
    nodes: Sequence[fx.Node], results: Sequence[Any], inside: Collection[fx.Node]
) -> list[fx.Node]:
    """The nodes that a body takes from outside, in the order of their first use."""
    return list(dict.fromkeys(n for n in used_nodes(nodes, results) if n not in inside))

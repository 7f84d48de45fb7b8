"""Writes to a graph's arguments and results between its forward and its backward pass.

Eager mode refuses a backward pass only if a written tensor is one that a gradient formula reads. A
partition may save other tensors and recompute the operands of the formulas: a write to those would
be refused, too. So nothing is recomputed from an argument or a result that no formula reads; if
several results have gradients, that the formulas of each which needs the recomputed value read.
"""

from __future__ import annotations

import operator

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from magpy_like.compiler.autograd.absent_gradients import tangents
from magpy_like.compiler.passes.alias_analysis import Aliases
from magpy_like.compiler.passes.graph_queries import is_view


def is_backward(node: fx.Node) -> bool:
    """True if AOTAutograd has traced the node of a joint graph in the backward pass."""
    return node.meta.get("partitioner_tag") == "is_backward"


def forbid_recomputation_from_visible_memory(joint: fx.GraphModule, forward_outputs: int) -> None:
    """Forbid the recomputation of operators on memory that the program can write to later, and that
    no gradient formula reads.

    ``joint`` is a graph as AOTAutograd has traced it, ``forward_outputs`` the number of its results
    that are no gradients. Checkpointed functions are recomputed in eager mode too.
    """
    graph, aliases = joint.graph, Aliases(joint.graph)
    reads = [node for node in graph.nodes if node.op == "call_function" and not _is_view(node)]
    formulas = [node for node in reads if is_backward(node)]
    if not formulas:
        return
    returned = graph.output_node().args[0][:forward_outputs]
    visible = {*graph.find_nodes(op="placeholder")}.union(
        *(aliases.roots[node] for node in returned if isinstance(node, fx.Node))
    )
    served = _gradients_served(graph)
    read_for = dict.fromkeys(visible, _NONE)
    for node in formulas:
        for memory in visible & _memory_read(node, aliases):
            read_for[memory] |= served[node]
    for node in reads:
        read = visible & _memory_read(node, aliases)
        if not is_backward(node) and any(not served[node] <= read_for[m] for m in read):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _gradients_served(graph: fx.Graph) -> dict[fx.Node, frozenset[fx.Node]]:
    """Node -> the incoming gradients that it depends on; of a node that depends on none, those that
    the nodes which need its value depend on."""
    served = {node: frozenset([node]) for node in tangents(graph)}
    for node in graph.nodes:
        served.setdefault(node, _NONE.union(*(served[n] for n in node.all_input_nodes)))
    for node in reversed(graph.nodes):
        if not served[node] and node.op != "output":
            users = (user for user in node.users if user.op != "output")
            served[node] = _NONE.union(*(served[user] for user in users))
    return served


_NONE: frozenset[fx.Node] = frozenset()


def _is_view(node: fx.Node) -> bool:
    return node.target is operator.getitem or is_view(node)


def _memory_read(node: fx.Node, aliases: Aliases) -> frozenset[fx.Node]:
    return frozenset().union(*(aliases.roots[n] for n in node.all_input_nodes))

"""Saved tensors of a compiled forward pass: their positions, and copies before mutations.

An argument that is saved, or a view of it, may be mutated before the backward pass runs. Where the
program itself does so, a copy is saved. Where somebody else does, autograd compares version
counters and refuses, as in eager mode; so the saved tensor has to share the counter.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes.alias_analysis import Aliases
from magpy_like.compiler.passes.graph_queries import have_same_sizes, insert, value
from magpy_like.torch_compat.aot_autograd import InputMutationAOTOutput, SavedForBackwardsAOTOutput

_aten = torch.ops.aten


def saved_tensor_indices(output: fx.Node) -> list[int]:
    """The indices of the saved tensors among the results of a forward graph."""
    descriptors = output.meta.get("desc") or ()
    return [k for k, d in enumerate(descriptors) if isinstance(d, SavedForBackwardsAOTOutput)]


def clone_before_mutation(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Save copies of arguments, and of views of them, that are mutated after they are saved: by the
    forward pass, or by AOTAutograd when it has run.

    Rewrites both graphs in place.

    Raises:
        Unsupported: the backward pass depends on the storage offset and gaps of an argument's
            memory, which a copy does not have.
    """
    graph, output = forward.graph, forward.graph.output_node()
    nodes, results = list(graph.nodes), list(output.args[0])
    aliases, mutated_later = Aliases(graph), {*_mutated_after_forward(graph)}
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    copies: dict[fx.Node, fx.Node] = {}
    for index in saved_tensor_indices(output):
        node = results[index]
        if not isinstance(node, fx.Node):
            continue
        roots = {root for root in aliases.roots[node] if root.op == "placeholder"}
        writes = [
            position
            for root in roots
            for position in aliases.written.get(root, ())
            if position > aliases.position[node]
        ]
        if not writes and mutated_later.isdisjoint(roots):
            continue
        if node not in copies:
            first = nodes[min(writes)] if writes else output
            copies[node] = insert(graph, _aten.clone.default, node, like=first)
            _match_saved_layout(inputs[node.name], copies[node])
        results[index] = copies[node]
    if copies:
        output.args = (tuple(results),)
        forward.recompile()


def _mutated_after_forward(graph: fx.Graph) -> Iterator[fx.Node]:
    """The arguments that AOTAutograd mutates after the forward pass."""
    arguments = {node.meta.get("desc"): node for node in graph.find_nodes(op="placeholder")}
    for descriptor in graph.output_node().meta.get("desc") or ():
        if isinstance(descriptor, InputMutationAOTOutput):
            yield arguments[descriptor.mutated_input]


def _match_saved_layout(saved: fx.Node, copy: fx.Node) -> None:
    """Trace the backward graph's input ``saved`` as ``copy``, which has no gaps in memory."""
    if have_same_sizes(value(saved).stride(), value(copy).stride()):
        return
    if any(user.target is _aten.as_strided.default for user in saved.users):
        raise Unsupported(
            "a graph",
            "its backward pass reads memory next to an argument (as_strided) that is modified",
        )
    saved.meta["val"] = value(copy)

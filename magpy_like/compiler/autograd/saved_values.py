"""What a forward pass leaves to its backward pass: values as they were when they were used.

An argument that is saved, or a view of it, may be written to before the backward pass runs. Where
the program itself does so, a copy is saved. Where somebody else does, autograd counts the writes to
the memory and refuses, as in eager mode; so what is saved has to share the count.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes.graph_queries import Aliases, insert, same_sizes, value
from magpy_like.torch_compat.aot_autograd import InputMutationAOTOutput, SavedForBackwardsAOTOutput

_aten = torch.ops.aten


def saved_places(output: fx.Node) -> list[int]:
    """Where among the results of a forward pass those are that only its backward pass gets."""
    descriptors = output.meta.get("desc") or ()
    return [k for k, d in enumerate(descriptors) if isinstance(d, SavedForBackwardsAOTOutput)]


def save_before_writing(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Have copies saved of arguments, and of views of them, that the forward pass writes to, or
    AOTAutograd when it has run.

    Raises:
        Unsupported: the backward pass counts on where in its argument's memory a tensor lies.
    """
    graph, output = forward.graph, forward.graph.output_node()
    nodes, results = list(graph.nodes), list(output.args[0])
    aliases, later = Aliases(graph), {*_written_later(graph)}
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    copies: dict[fx.Node, fx.Node] = {}
    for place in saved_places(output):
        node = results[place]
        if not isinstance(node, fx.Node):
            continue
        roots = {root for root in aliases.roots[node] if root.op == "placeholder"}
        writes = [
            at
            for root in roots
            for at in aliases.written.get(root, ())
            if at > aliases.position[node]
        ]
        if not writes and later.isdisjoint(roots):
            continue
        if node not in copies:
            first = nodes[min(writes)] if writes else output
            copies[node] = insert(graph, _aten.clone.default, node, like=first)
            _lies_as(inputs[node.name], copies[node])
        results[place] = copies[node]
    if copies:
        output.args = (tuple(results),)
        forward.recompile()


def _written_later(graph: fx.Graph) -> Iterator[fx.Node]:
    """The arguments that AOTAutograd writes new values to behind the forward pass."""
    arguments = {node.meta.get("desc"): node for node in graph.find_nodes(op="placeholder")}
    for descriptor in graph.output_node().meta.get("desc") or ():
        if isinstance(descriptor, InputMutationAOTOutput):
            yield arguments[descriptor.mutated_input]


def _lies_as(saved: fx.Node, copy: fx.Node) -> None:
    """The backward pass gets a copy, which has no gaps where the argument had some."""
    if same_sizes(value(saved).stride(), value(copy).stride()):
        return
    if any(user.target is _aten.as_strided.default for user in saved.users):
        raise Unsupported("a graph", "reads memory of an argument beside what it was given")
    saved.meta["val"] = value(copy)

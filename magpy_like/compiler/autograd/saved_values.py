"""Saved values of a compiled forward pass: their positions, copies before mutations, and sizes.

An argument that is saved, or a view of it, may be mutated before the backward pass runs. Where the
program itself does so, a copy is saved. Where somebody else does, autograd compares version
counters and refuses, as in eager mode; so the saved tensor has to share the counter.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

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


def save_gradient_sizes(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Save the data-dependent sizes of results, for the backward pass to make zeros of such a size.

    AOTAutograd does not know that a result and its gradient have the same data-dependent sizes: it
    has a symbol for each, and saves neither. Rewrites both graphs in place.
    """
    output = forward.graph.output_node()
    results, descriptors = list(output.args[0]), list(output.meta.get("desc") or ())
    result_of = dict(zip(descriptors, results, strict=False))
    inputs = backward.graph.find_nodes(op="placeholder")
    known = {value(p).node.expr for p in inputs if isinstance(value(p), torch.SymInt)}
    first_tensor = next(p for p in inputs if not isinstance(value(p), torch.SymInt))
    added = []
    for gradient in inputs:
        result = result_of.get(getattr(gradient.meta.get("desc"), "output", None))
        for k, size in _data_dependent_sizes(gradient):
            if result is None or size.node.expr in known:
                continue
            known.add(size.node.expr)
            added.append(insert(forward.graph, _aten.sym_size.int, result, k, like=output))
            with backward.graph.inserting_before(first_tensor):
                number = backward.graph.placeholder(f"size_of_{gradient.name}_{k}")
            number.meta["val"] = size
    if added:
        saved = len(saved_tensor_indices(output))
        descriptors += [SavedForBackwardsAOTOutput(saved + k) for k in range(len(added))]
        output.args, output.meta["desc"] = ((*results, *added),), descriptors
        forward.recompile()
        backward.recompile()


def _data_dependent_sizes(node: fx.Node) -> Iterator[tuple[int, torch.SymInt]]:
    """The sizes of a tensor that depend on data, each with its dimension."""
    val = value(node)
    for k, size in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
        if isinstance(size, torch.SymInt) and free_unbacked_symbols(size):
            yield k, size

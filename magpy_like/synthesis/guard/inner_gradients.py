"""Gradients computed inside of a region, with respect to external tensors.

Autograd follows an external tensor that is no leaf to the operators before the region, and may
arrive at the very tensor that the program differentiates by. A compiled graph begins at its inputs.
Autograd also passes a gradient to the hooks of the tensor that it is taken by; a compiled graph
calls none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.control_operators import may_write
from magpy_like.graph_operators.node_metadata import DIFFERENTIATES
from magpy_like.monitor.operator_graph.function_nodes import before_replacement, replace_data
from magpy_like.monitor.recording import Recording
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.split_points import AUTOGRAD, Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.guard.conditions import Kind
from magpy_like.synthesis.guard.guard_writer import GuardWriter
from magpy_like.torch_compat.autograd import gradient_hooks


def write_inner_gradients(writer: GuardWriter, graph: fx.GraphModule) -> None:
    """Write that an input which an inner gradient is taken by has no hooks, and that no input
    depends on it.

    If one has or does in the recorded run, the graph runs as it is.

    Raises:
        Split: the program has set the data of a tensor that a gradient is taken by, so that the
            graph has another tensor in its place, and one has or does, or the earlier tensor was
            used.
    """
    rec, calls = writer.rec, [node for node in graph.graph.nodes if _wanted(node)]
    external = _differentiable_inputs(rec) if calls else {}
    for call in calls:
        places = _wanted(call)
        _check_replaced_data(call, places)
        wanted = [
            external[n] for n in dict.fromkeys(map(before_replacement, places)) if n in external
        ]
        replaced = any(node.target is replace_data for node in places)
        if wanted and (replaced or not rec.graph.runs_as_is):
            _write_hooks(writer, wanted, replaced)
        used = [external[n] for n in _sources(call) if n in external] if wanted else []
        if not used or len({*wanted, *used}) == 1:
            continue
        if rec.graph.runs_as_is and not replaced:
            continue  # autograd follows its inputs
        tensors = [[node.variable for node in nodes] for nodes in (wanted, used)]
        if _has_new_history(rec, (*wanted, *used)) or not have_separate_histories(*tensors):
            _run_as_is(rec, "computes gradients by what its inputs were computed from", replaced)
            continue
        names = (_tuple(writer, nodes) for nodes in (wanted, used))
        test = f"{writer.source.constant(have_separate_histories)}({', '.join(names)})"
        by = ", ".join(map(writer.label, wanted))
        description = f"no input was computed from what gradients are taken by: {by}"
        writer.check(Kind.SEPARATE_HISTORIES, test, description)


def _write_hooks(writer: GuardWriter, wanted: list[ShadowNode], replaced: bool) -> None:
    if not have_no_hooks([node.variable for node in wanted]):
        _run_as_is(writer.rec, "computes gradients by a tensor that has hooks", replaced)
        return
    test = f"{writer.source.constant(have_no_hooks)}({_tuple(writer, wanted)})"
    by = ", ".join(map(writer.label, wanted))
    writer.check(
        Kind.NO_GRADIENT_HOOKS, test, f"nothing that gradients are taken by has hooks: {by}"
    )


def _run_as_is(rec: Recording, reason: str, replaced: bool) -> None:
    """Have the graph run as it is. ``replaced`` tells that it has another tensor in the place of
    one whose data was set: then it cannot be part of a record."""
    if replaced:
        raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)
    rec.graph.runs_as_is = reason


def _tuple(writer: GuardWriter, nodes: Sequence[ShadowNode]) -> str:
    return f"({', '.join(map(writer.name, nodes))},)"


def _check_replaced_data(call: fx.Node, wanted: list[fx.Node]) -> None:
    """Raises Split if a node differentiates by a tensor whose data was set, and by uses of it
    before: in the graph, those are of another tensor."""
    replaced = {before_replacement(node) for node in wanted if node.target is replace_data}
    if replaced:
        for node in _sources(call, but=wanted):
            if before_replacement(node) in replaced:
                raise Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)


def have_no_hooks(tensors: Sequence[torch.Tensor]) -> bool:
    """True if no tensor has hooks on its gradient."""
    return not any(map(gradient_hooks, tensors))


def have_separate_histories(wanted: Sequence[torch.Tensor], used: Sequence[torch.Tensor]) -> bool:
    """True if autograd's graph does not lead from a used tensor to a wanted one, except from a
    tensor to itself."""
    if all(t.grad_fn is None for t in used):
        return True
    leaves = {id(t) for t in wanted if t.grad_fn is None}
    edges = {(t.grad_fn, t.output_nr): t for t in wanted if t.grad_fn is not None}
    nodes = []
    for tensor in used:
        if tensor.grad_fn is not None:
            if edges.get((tensor.grad_fn, tensor.output_nr), tensor) is not tensor:
                return False
            nodes.append(tensor.grad_fn)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if not node.next_functions and id(getattr(node, "variable", None)) in leaves:
            return False
        for edge in node.next_functions:
            if edge in edges:
                return False
            if edge[0] is not None and edge[0] not in seen:
                seen.add(edge[0])
                nodes.append(edge[0])
    return True


def _differentiable_inputs(rec: Recording) -> dict[fx.Node, ShadowNode]:
    """The external tensors that require gradients when the region is entered, by placeholder."""
    found = {}
    for placeholder, source in rec.operators.nodes.inputs:
        if is_instance(source, int):
            node = rec.refs.get_node_by_id(source)
            if is_instance(node.variable, torch.Tensor) and node.variable.requires_grad:
                check = node.first.value
                if check is None or check.why(node.variable) != "requires_grad":
                    found[placeholder] = node
    return found


def _has_new_history(rec: Recording, nodes: Sequence[ShadowNode]) -> bool:
    """True if the region has written to one of these tensors with autograd recording it."""
    return any(n.variable.grad_fn is not None and rec.writes.is_written(n) for n in nodes)


def _wanted(call: fx.Node) -> list[fx.Node]:
    """The tensors by which a node may differentiate; none if it does not."""
    if DIFFERENTIATES in call.meta:
        return call.all_input_nodes
    if call.target is not torch.autograd.grad:
        return []
    inputs = call.args[1] if len(call.args) > 1 else call.kwargs["inputs"]
    nodes = inputs if is_instance(inputs, list | tuple) else (inputs,)
    return [node for node in nodes if is_instance(node, fx.Node)]


def _sources(call: fx.Node, but: Sequence[fx.Node] = ()) -> dict[fx.Node, None]:
    """The nodes that the differentiated tensors depend on, through writes before the call too.

    Those in ``but``, and what only they depend on, are left out.
    """
    outputs: Any = call.all_input_nodes
    if DIFFERENTIATES not in call.meta:
        outputs = call.args[0] if call.args else call.kwargs["outputs"]
    nodes = list(outputs) if is_instance(outputs, list | tuple) else [outputs]
    for node in call.graph.nodes:
        if node is call:
            break
        if node.op in ("call_function", "call_method") and may_write(node):
            nodes.append(node)
    found: dict[fx.Node, None] = {}
    while nodes:
        node = nodes.pop()
        if is_instance(node, fx.Node) and node not in found and node not in but:
            found[node] = None
            nodes += node.all_input_nodes
    return found

"""From the operator graph of a recording to a compiled graph, called in the mock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.graph_operators.control_operators import has_parts
from magpy_like.graph_operators.custom_functions import mark_custom_functions
from magpy_like.graph_operators.node_metadata import INPUT_UNCHANGED, INPUT_WRITES, RESULT_VERSIONS
from magpy_like.monitor.operator_graph.tensor_writes import WRITE_TO_REPLACED_DATA
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Expression
from magpy_like.monitor.torch_state.default_device import without_default_device
from magpy_like.monitor.torch_state.torch_modes import Modes
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import (
    array_owner,
    memory_span,
    storage_of,
    tensor_version,
)
from magpy_like.split_points import BranchRefused, Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.example_inputs import example_inputs
from magpy_like.synthesis.guard.guard_builder import GuardBuilder
from magpy_like.synthesis.guard.inner_gradients import write_inner_gradients
from magpy_like.synthesis.mock.mock_builder import MockBuilder
from magpy_like.synthesis.shared_graphs import CompiledGraph
from magpy_like.torch_interop.current_gpu import tracing_without_cache
from magpy_like.torch_interop.version_counters import shares_counter


@dataclass(frozen=True)
class GraphCompiler:
    """Compilation of operator graphs, as the dispatcher of a program provides it."""

    backend: Callable[[fx.GraphModule, Sequence[Any]], CompiledGraph]
    """Compiles a graph for example inputs."""
    interpret: Callable[[fx.GraphModule], Callable[..., Any]]
    """A callable that runs a graph operator by operator."""
    at_entry: Callable[[], contextlib.AbstractContextManager[Any]]
    """Restores torch's global state at the entry of the region, where the graph runs."""


def compile_graph(
    rec: Recording, guard: GuardBuilder, mock: MockBuilder, compiler: GraphCompiler
) -> tuple[CompiledGraph | None, list[str]]:
    """Compile the operator graph, unless it has no results and no side effects.

    Writes the guard's conditions on memory that inputs share.

    Returns:
        The compiled graph, and the names of its inputs in the mock.

    Raises:
        Split: the graph cannot be part of a record.
    """
    operators, outputs = rec.operators, mock.interface.outputs
    changed = rec.writes.changed_inputs()
    has_effects = changed or operators.drawn_from
    if rec.writes.changed_arrays():
        raise Split(
            SplitReason.NUMPY_MEMORY,
            "changes an external NumPy array, or one that shares memory with a tensor",
        )
    if rec.inspections.has_changed():
        raise BranchRefused(
            SplitReason.BRANCH_NOT_MERGEABLE, "changes a tensor in place that a branch may return"
        )
    if not outputs and not (operators.nodes.operator_count and has_effects):
        return None, []
    if not rec.constants.numpy_shares_are_unchanged():
        raise Split(
            SplitReason.NUMPY_MEMORY, "changes memory that a tensor and a NumPy array share"
        )
    _check_tensors_of_arrays(rec, mock, outputs)
    if rec.writes.replaced_and_written:
        raise Split(SplitReason.TENSOR_INTERNALS, WRITE_TO_REPLACED_DATA)
    if rec.writes.data_replaced:
        _check_views_of_replaced_data(rec, outputs)
    operators.nodes.erase_unused(rec.lifted.arithmetic.in_python, outputs)
    graph = operators.nodes.finish(outputs)
    mark_custom_functions(graph)
    _note_versions(rec, graph, changed)
    if rec.effects.modes_left is not None:
        _restore_autocast(graph, *rec.effects.modes_left)
    tensors, names = [], []
    for _, source in operators.nodes.inputs:
        if is_instance(source, Expression):
            names.append(mock.values.number(source))
            continue
        node = rec.refs.get_node_by_id(source)
        if node.variable is None:
            raise Split(
                SplitReason.FINALIZER, "destroys a variable that is an input of the operator graph"
            )
        if is_instance(node.variable, torch.Tensor):
            tensors.append(node)
        names.append(mock.interface.existing(node))
    _write_conditions_on_memory(rec, guard, graph, tensors)
    if rec.graph.stays_whole and has_parts(graph):
        rec.graph.runs_as_is = rec.graph.stays_whole
    write_inner_gradients(guard.writer, graph)
    if rec.graph.runs_as_is:
        return CompiledGraph(graph, compiler.interpret(graph)), names
    make = without_default_device(
        lambda: compiler.backend(graph, example_inputs(rec, bool(changed)))
    )
    afresh = (
        tracing_without_cache() if rec.state.relies_on_current_gpu else contextlib.nullcontext()
    )
    with compiler.at_entry(), afresh:
        return make(), names


def _write_conditions_on_memory(
    rec: Recording, guard: GuardBuilder, graph: fx.GraphModule, inputs: list[ShadowNode]
) -> None:
    """Write the conditions on inputs that are changed in place, and on memory shared with them."""
    changed = rec.writes.changed_inputs()
    if rec.writes.has_uncounted(graph):
        rec.graph.runs_as_is = "changes a tensor through its data, which autograd does not notice"
    if changed:
        guard.distinctness.write_shared_memory(inputs, changed)
        guard.distinctness.write_writability(changed)


def _check_tensors_of_arrays(rec: Recording, mock: MockBuilder, outputs: Sequence[fx.Node]) -> None:
    """Raises Split if a tensor outlives the record in the memory of a NumPy array that others see:
    the graph has a copy of the array."""

    def is_seen(array: np.ndarray[Any, Any]) -> bool:
        owner = array_owner(array)
        is_own = rec.variables.is_new_object(owner)
        return not is_own or mock.values.instances.makes_memory_of(owner)

    # The storage of a tensor made of an array begins with the array.
    seen = {array.ctypes.data for array, _ in rec.operators.shared_arrays if is_seen(array)}
    if not seen:
        return
    for tensor, node in rec.operators.nodes.live_tensors():
        if node in outputs:
            start, size = memory_span(tensor)
            if size and start in seen:
                raise Split(
                    SplitReason.NUMPY_MEMORY, "keeps a tensor in the memory of a NumPy array"
                )


def _check_views_of_replaced_data(rec: Recording, outputs: Sequence[fx.Node]) -> None:
    """Raises Split if a view outlives the record that was made of a tensor after its data was set:
    it has the version counter of the tensor, and the graph's view that of the new data."""
    nodes = rec.operators.nodes
    replaced = rec.writes.with_replaced_data()
    data = {nodes.node_of(tensor): storage_of(tensor) for tensor in replaced}
    kept = {node: storage_of(tensor) for tensor, node in nodes.live_tensors() if node in outputs}
    set_before: set[int] = set()
    for node in nodes.graph.nodes:
        if node in data:
            set_before.add(data[node])
        elif kept.get(node) in set_before:
            raise Split(
                SplitReason.TENSOR_INTERNALS, "keeps a view of a tensor after setting its data"
            )


def _note_versions(rec: Recording, graph: fx.GraphModule, changed: Sequence[ShadowNode]) -> None:
    """Note in the graph how often the program has written to inputs and results.

    Not in a graph that runs in parts: with branches or loops, the number differs between calls.
    There the compiler counts the writes of each part.
    """
    if has_parts(graph):
        return
    external, counts = [], {node.node_id: rec.writes.count(node) for node in changed}
    for placeholder, source in rec.operators.nodes.inputs:
        if is_instance(source, int):
            node = rec.refs.get_node_by_id(source)
            external.append(node.variable)
            if counts.get(source):
                placeholder.meta[INPUT_WRITES] = counts[source]
                if rec.writes.keeps_elements(node) and rec.reads.has_layout_of_entry(node):
                    placeholder.meta[INPUT_UNCHANGED] = True
    output = graph.graph.output_node()
    versions = {
        node: tensor_version(tensor)
        for tensor, node in rec.operators.nodes.live_tensors()
        if node in output.all_input_nodes and not _is_counted_outside(tensor, external)
    }
    if any(version > 0 for version in versions.values()):
        (results,) = output.args
        output.meta[RESULT_VERSIONS] = tuple(max(versions.get(node, 0), 0) for node in results)


def _is_counted_outside(tensor: torch.Tensor, external: Sequence[Any]) -> bool:
    """True if a tensor has the version counter of an external tensor.

    ``x.data`` is in the memory of ``x``, and has its own.
    """
    memory = storage_of(tensor)
    others = [t for t in external if is_instance(t, torch.Tensor) and storage_of(t) == memory]
    return bool(others) and (tensor_version(tensor) <= 0 or shares_counter(tensor, others))


def _restore_autocast(graph: fx.GraphModule, found: Modes, left: Modes) -> None:
    """Append calls that switch autocast back to its state at entry, as backends require.

    The mock switches it as the program leaves it. The cache of casts stays: the program is still
    in that context, or has cleared the cache.
    """
    with graph.graph.inserting_before(graph.graph.output_node()):
        for function, arguments in left.calls_to(replace(found, grad=left.grad)):
            if function is not torch.clear_autocast_cache:
                graph.graph.call_function(function, arguments)
    graph.recompile()

"""Writes to tensors: the data replaced, the memory written, and the counters kept in tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.graph_operators.control_operators import has_parts
from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.operator_graph.constant_tensors import ConstantTensors
from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
from magpy_like.monitor.symbolic.expressions import Computed
from magpy_like.monitor.torch_state.tensor_counters import TensorCounters
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import RefGraph, ShadowNode
from magpy_like.refgraph.plain_values import (
    has_values,
    is_leaf_or_view_of_one,
    storage_of,
    tensor_version,
)
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

WRITE_TO_REPLACED_DATA = "writes to a tensor after setting its data"
_USE_OF_ANOTHER_FORM = "uses a tensor after setting its data to another dtype, shape or device"

Form = tuple[torch.dtype, torch.device, torch.Size | None]


class TensorWrites:
    """The tensors that the program has written to."""

    def __init__(
        self,
        refs: RefGraph,
        variables: Variables,
        operators: OperatorGraph,
        constants: ConstantTensors,
    ) -> None:
        self._refs, self._operators, self._constants = refs, operators, constants
        self.data_replaced: dict[int, Form] = {}
        """The nodes of external tensors whose data the program replaced (``tensor.data = …``), and
        the tensors' form before."""
        self.replaced_and_written = False
        """Whether an operator was about to write to one while gradients are recorded: autograd
        raises where an operator before it has saved the tensor, which in a record is another."""
        self.written_memory: dict[int, fx.Node | None] = {}
        """Storages that operators have written to, through any tensor, with the last node of the
        graph before the first write."""
        self._written_elements: set[int] = set()
        """The storages to whose elements operators have written."""
        self._dimension_changes: Counter[int] = Counter()
        """How often operators have changed sizes and strides of tensors, by storage."""
        self.versions: dict[int, int] = {}
        """torch's version counters of external tensors when they were first read, by node."""
        self.recorded: set[int] = set()
        """The nodes of external tensors of which autograd would have recorded a write then."""
        self._counters = TensorCounters(variables, constants, operators)

    def note_read(self, node: ShadowNode) -> None:
        """Note the state of an external tensor that is read for the first time."""
        tensor = node.variable
        self.versions[node.node_id] = tensor_version(tensor)
        if tensor.requires_grad and not is_leaf_or_view_of_one(tensor):
            self.recorded.add(node.node_id)

    def note_operator(
        self,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Note an operator that has been added to the graph."""
        self._constants.note(operation, args, kwargs, result, self._is_lifted)
        self._counters.note(operation, args, kwargs, self.data_replaced, self.versions)

    def _is_lifted(self, value: Any) -> bool:
        return self._operators.numbers.expression(value) is not None

    def counted_value(self, tensor: torch.Tensor) -> Computed | None:
        """The value of an external tensor that was only counted up; None for any other."""
        return self._counters.value(tensor, self.data_replaced)

    def is_written(self, node: ShadowNode) -> bool:
        """True if the program has changed the contents of an external tensor."""
        return node.node_id in self.data_replaced or self.has_written(node)

    def has_written(self, node: ShadowNode) -> bool:
        """True if operators have written to an external tensor."""
        tensor = node.variable
        return tensor_version(tensor) != self.versions.get(node.node_id) or (
            bool(self.written_memory) and storage_of(tensor) in self.written_memory
        )

    def note_replaced_data(self, node: ShadowNode) -> None:
        """Note that the program is about to set the data of an external tensor."""
        self.data_replaced.setdefault(node.node_id, tensor_form(node.variable))

    def check_form_at_use(self, tensor: torch.Tensor) -> None:
        """Check a tensor that an operator is about to use, whose gradients autograd records.

        Raises:
            Split: the program has given it data of another form. Autograd casts its gradients to
                the form at its first use; in a record, that is the old one.
        """
        if not tensor.requires_grad:
            return
        for number, form in self.data_replaced.items():
            if self._refs.get_node_by_id(number).variable is tensor and form != tensor_form(tensor):
                raise Split(SplitReason.TENSOR_INTERNALS, _USE_OF_ANOTHER_FORM)

    def check_replaced_data(self, tensor: torch.Tensor) -> None:
        """Check a tensor that an operator is about to write to.

        Raises:
            Split: the program has set an external tensor's data to its memory. The record sets the
                data once, at its end, and autograd and version counters would miss the write.
        """
        memory = storage_of(tensor)
        written = [t for t in self.with_replaced_data() if storage_of(t) == memory]
        if written:
            self.replaced_and_written = torch.is_grad_enabled()
            raise Split(SplitReason.TENSOR_INTERNALS, WRITE_TO_REPLACED_DATA)

    def with_replaced_data(self) -> list[torch.Tensor]:
        """The external tensors whose data the program has set."""
        return [self._refs.get_node_by_id(number).variable for number in self.data_replaced]

    def count(self, node: ShadowNode) -> int:
        """The number of writes to an external tensor that its version counter has counted."""
        version = tensor_version(node.variable)
        return version - self.versions.get(node.node_id, version)

    def keeps_elements(self, node: ShadowNode) -> bool:
        """True if all writes to an external tensor have changed dimensions of tensors in its
        memory; false also if not every write that its version counts is known."""
        memory = storage_of(node.variable)
        is_known = self.count(node) <= self._dimension_changes[memory]
        return is_known and memory not in self._written_elements

    def note_write(self, tensor: torch.Tensor, *, to_elements: bool) -> bool:
        """Note that an operator, not on the graph yet, has written to a tensor: to its elements, or
        only to its sizes and strides.

        Returns:
            True if the tensor has memory.
        """
        memory = storage_of(tensor)
        if not memory:
            return False
        last = next(iter(reversed(self._operators.nodes.graph.nodes)), None)
        self.written_memory.setdefault(memory, last)
        if to_elements:
            self._written_elements.add(memory)
        else:
            self._dimension_changes[memory] += 1
        self._counters.note_write(memory)
        self._constants.note_write(tensor)
        return True

    def changed_inputs(self) -> list[ShadowNode]:
        """The external tensors that operators have changed in place."""
        return [
            node
            for _, shadow in self._operators.nodes.inputs
            if is_instance(shadow, int)
            and is_instance((node := self._refs.get_node_by_id(shadow)).variable, torch.Tensor)
            and self.is_written(node)
        ]

    def has_uncounted(self, graph: fx.GraphModule) -> bool:
        """True if operators of the graph have written to an external tensor through ``.data``,
        which its version counter does not count.

        Also true if they may have, in a graph that runs in parts: there the compiler counts writes.
        """
        parts = [part.graph for part in graph.modules() if is_instance(part, fx.GraphModule)]
        reads = (n for part in parts for n in part.find_nodes(op="call_function", target=getattr))
        if not any(node.args[1] == "data" for node in reads):
            return False
        in_parts = has_parts(graph)
        return any(
            node.node_id not in self.data_replaced and (in_parts or not self.count(node))
            for node in self.changed_inputs()
        )

    def changed_arrays(self) -> bool:
        """True if a NumPy array that the record relies on has changed since it was read."""
        seen = [(n.variable, n.contents) for n in self._refs if is_instance(n.contents, np.ndarray)]
        pairs = [*seen, *self._operators.shared_arrays]
        return any(array.tobytes() != before.tobytes() for array, before in pairs)


def tensor_form(tensor: torch.Tensor) -> Form:
    """What autograd notes of a tensor: its gradients have the same."""
    shape = tensor.shape if has_values(tensor) else None
    return tensor.dtype, tensor.device, shape

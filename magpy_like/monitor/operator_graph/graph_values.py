"""What the program's tensors are on the operator graph, and which of them were written.

Each tensor that an operator is given is an input of the graph, because it was there before, or the
value of a node; one of any other origin splits the program. Nothing goes on the graph while an
operator runs inside of which others run: that one is the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.annotation.schema import DataShape
from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.operator_graph.constant_tensors import ConstantTensors
from magpy_like.monitor.operator_graph.function_nodes import replace_data
from magpy_like.monitor.operator_graph.graph_nodes import AS_IS
from magpy_like.monitor.symbolic.expressions import Expression
from magpy_like.monitor.symbolic.symbolic_twin import TWIN, SymbolicTwin
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.monitor.torch_state.default_device import with_device
from magpy_like.monitor.torch_state.tensor_counters import TensorCounters
from magpy_like.native import TensorCheck
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.refgraph.plain_values import storage_of, tensor_version
from magpy_like.split_points import EffectInsideOperator, Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.dispatch import DisableTorchFunctionSubclass
from magpy_like.torch_interop.saved_tensor_hooks import without_saved_tensor_hooks


def _none_dynamic(path: Path, tensor: torch.Tensor) -> Collection[int]:
    return ()


class GraphValues(Variables):
    """The operator graph in the making, and what the program's tensors are on it."""

    def __init__(self) -> None:
        super().__init__()
        self.lifted: Any = None
        """The lifted numbers of the run, once it has begun."""
        self.constants = ConstantTensors()
        self.counters = TensorCounters()
        self.twin: SymbolicTwin | None = None
        """The run on symbolic sizes beside this one, while there are dynamic dimensions."""
        self.dynamic_dims: Callable[[Path, torch.Tensor], Collection[int]] = _none_dynamic
        """Which dimensions of a tensor at a place outside may vary."""
        self.checkpointed: Any = None
        """The innermost call of a function under a checkpoint that is running."""
        self.inside = 0
        """How many operators are running: what runs inside one is not on the graph itself."""
        self.given: dict[int, torch.Tensor] = {}
        """The tensors that the running operator was given, by id."""
        self.called: list[Any] = []
        """The modules, classes and code of functions that the running operator calls."""
        self.dynamic_inside = False
        """Whether the running operator does something that is dynamic, so that running it a second
        time would be more than to compute."""
        self.running_as_is: str | None = None
        """Why the running operator is not for a backend: it does more than to compute."""
        self.operators_as_is: list[str] = []
        """The same of each such operator on the graph."""
        self.runs_as_is: str | None = None
        """Why no part of the operator graph must be compiled."""
        self.stays_whole: str | None = None
        """Why the operator graph must not be compiled in parts."""
        self.kept: list[torch.Tensor] = []
        """The inputs of the operator graph: the backend needs them even if the program lets go."""
        self.data_replaced: dict[int, None] = {}
        """The tensors from outside that were given other data."""
        self.written_memory: dict[int, fx.Node | None] = {}
        """The memory of tensors that operators have written to, through whatever tensor, and what
        the graph ended with before the first time."""
        self.tensor_versions: dict[int, int] = {}
        """torch's own version counters of the tensors from outside, when they were met."""

    def keep_as_is(self, reason: str) -> None:
        """The running operator does something that is dynamic: it stays on the graph as a whole,
        but runs as it is."""
        self.running_as_is = reason
        self.dynamic_inside = True

    def graph_value(self, tensor: torch.Tensor) -> fx.Node:
        """The graph's node for a tensor, which was read from outside if no operator has made it.

        Raises:
            Split: it is neither.
        """
        known = self.operators.node_of(tensor)
        if known is not None:
            return known
        node = self.node(tensor)
        if node is None:
            raise Split(
                SplitReason.UNKNOWN_ORIGIN, "uses a tensor that unmonitored code has created"
            )
        self.kept.append(tensor)
        return self.operators.add_input(tensor, node.node_id)

    def operator(
        self,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        shape: DataShape = DataShape.NEVER,
    ) -> None:
        """A tensor operator ran.

        Raises:
            Split: an input is a tensor of unknown origin.
        """
        kwargs = with_device(operation, dict(kwargs))
        with without_saved_tensor_hooks():  # on what a symbolic run saves
            node = self.operators.add_operator(
                operation, args, kwargs, result, self.graph_value, shape, not self.dynamic_inside
            )
        if self.running_as_is:
            node.meta[AS_IS] = self.running_as_is
            self.operators_as_is.append(self.running_as_is)
        self.constants.note(operation, args, kwargs, result, self._is_lifted)
        self.counters.note(self, operation, args, kwargs)

    def _is_lifted(self, value: Any) -> bool:
        return self.operators.expression(value) is not None

    def replace_data(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """``tensor.data = value``: from here on the tensor is another value of the graph.

        Raises:
            Split: the tensor is one of the program's own intermediate values.
        """
        node = self.node(tensor)
        if node is None:
            raise Split(SplitReason.TENSOR_INTERNALS, "sets the data of an intermediate tensor")
        if self.inside:
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR, "sets the data of a tensor inside an operator"
            )
        before, after = self.graph_value(tensor), self.graph_value(value)
        if tensor.requires_grad:
            after = self.operators.graph.call_function(replace_data, (before, after))
        self.operators.set_node(tensor, after)
        self.data_replaced[node.node_id] = None

    def item(
        self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any
    ) -> tuple[fx.Node, Any]:
        """The graph's node for a number read from a tensor, and its twin if there is one."""
        node = self.operators.add_item(operation, args, value, self.graph_value)
        return node, node.meta.get(TWIN)

    def items(
        self, operation: Callable[..., Any], tensor: torch.Tensor
    ) -> Callable[[Any], fx.Node]:
        """Gives the graph's nodes for the numbers that a tensor holds, one after the other.

        Raises:
            Split: the tensor is of unknown origin.
        """
        elements = self.operators.add_elements(self.graph_value(tensor), tensor.numel())
        return lambda value: self.operators.add_item(
            operation, (tensor,), value, lambda _: next(elements)
        )

    def snapshot_of(self, tensor: torch.Tensor) -> fx.Node:
        """The graph's node for what a tensor holds now, whatever becomes of it.

        Raises:
            Split: the tensor is of unknown origin.
        """
        return self.operators.add_snapshot(self.graph_value(tensor))

    def plain_result(
        self, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> fx.Node:
        """The graph's node for plain values that an operation on tensors gives.

        Raises:
            Split: an input is a tensor of unknown origin.
        """
        self.runs_as_is = "tensors' values become Python's"
        return self.operators.add_operator(operation, args, kwargs, None, self.graph_value)

    def add_drawn(self, tensor: torch.Tensor, drawn: Expression) -> None:
        """A tensor made of what was drawn is an input of the operator graph."""
        self.kept.append(tensor)
        self.operators.add_drawn(tensor, drawn)

    def is_written(self, node: ShadowNode) -> bool:
        """Whether the program has changed what a tensor from outside holds."""
        tensor = node.variable
        return (
            node.node_id in self.data_replaced
            or tensor_version(tensor) != self.tensor_versions.get(node.node_id)
            or (bool(self.written_memory) and storage_of(tensor) in self.written_memory)
        )

    def note_write(self, tensor: torch.Tensor) -> None:
        """An operator that is not on the graph yet has written to a tensor."""
        memory = storage_of(tensor)
        if memory:
            last = next(iter(reversed(self.operators.graph.nodes)), None)
            self.written_memory.setdefault(memory, last)
            self.counters.note_write(memory)
            if self.checkpointed is not None:
                self.checkpointed.note_write(self, tensor)
            self.constants.note_write(tensor)

    def changed_inputs(self) -> list[ShadowNode]:
        """The tensors from outside that operators have changed in place."""
        return [
            node
            for _, shadow in self.operators.inputs
            if is_instance(shadow, int)
            and is_instance((node := self.refs.get_node_by_id(shadow)).variable, torch.Tensor)
            and self.is_written(node)
        ]

    def changed_arrays(self) -> bool:
        """Whether NumPy arrays that count hold something else by now."""
        seen = [(n.variable, n.contents) for n in self.refs if is_instance(n.contents, np.ndarray)]
        pairs = [*seen, *self.operators.shared_arrays]
        return any(array.tobytes() != before.tobytes() for array, before in pairs)

    def begin_twin(self, account: Callable[[], None], locate: Callable[[], str]) -> None:
        """Every operator is to run on symbolic sizes as well; ``account`` hears of it, ``locate``
        says where the program is."""
        self.twin = self.operators.twin = SymbolicTwin(self.operators.add_size, account, locate)

    def twin_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The symbolic twin of a tensor, where there is one."""
        if self.twin is None:
            return None
        node = self.node(tensor)
        if node is not None and node.node_id in self.twin.inputs:
            return self.twin.inputs[node.node_id]
        return self.operators.twin_of(tensor)

    def is_made_inside(self, tensor: torch.Tensor) -> bool:
        """Whether a running operator has made a tensor: there is nothing on the graph for it."""
        return self.node(tensor) is None and self.operators.node_of(tensor) is None

    def varying_dims(self, tensor: torch.Tensor) -> list[int]:
        """The dimensions of a tensor whose sizes are made of varying ones, or decided by data.

        Where nobody knows which, it is most likely the first one: operators that select elements
        put them there.
        """
        twin = self.twin_of(tensor)
        if twin is None or self.twin is None:
            if not self.operators.has_data_dependent_shape(tensor):
                return []
            with DisableTorchFunctionSubclass():  # a class of it would hear of this
                return [0] if tensor.dim() else []
        return [dim for dim, size in enumerate(twin.shape) if self.twin.is_dynamic(size)]

    def _dynamic(self, node: ShadowNode, tensor: torch.Tensor) -> TensorCheck | None:
        """The check of a tensor of which some dimensions may vary."""
        if self.twin is None or is_instance(tensor, torch.nn.Parameter):
            return None
        path = self.path(node)
        if not path or (len(path) > 1 and path[-2].key in ("_parameters", "_buffers")):
            return None
        return self.twin.add_tensor(node, tensor, self.dynamic_dims(path, tensor))

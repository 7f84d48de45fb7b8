"""The operator graph's values: the node of each of the program's tensors.

An input tensor of an operator is an external tensor, which becomes an input of the graph, or the
value of a node. A tensor of any other origin splits the program. Operators inside another operator
are not added: the outer operator is the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from magpy_like.annotation.schema import DataShape
from magpy_like.graph_operators.custom_functions import SHARED_REASON
from magpy_like.graph_operators.node_metadata import (
    AS_IS,
    CUSTOM_VIEW,
    CUSTOM_WRITES,
    DIFFERENTIATES,
    TWIN,
)
from magpy_like.monitor.calls.argument_kinds import describe, tensors_in
from magpy_like.monitor.calls.backward_code import kept_dependence
from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.operator_graph.function_nodes import before_replacement, replace_data
from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
from magpy_like.monitor.operator_graph.running_operator import RunningOperator
from magpy_like.monitor.operator_graph.tensor_writes import TensorWrites
from magpy_like.monitor.symbolic.expressions import Expression
from magpy_like.monitor.torch_state.default_device import with_device
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import storage_of
from magpy_like.split_points import EffectInsideOperator, Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.autograd import custom_function_calls
from magpy_like.torch_compat.operators import OpOverload, OpOverloadPacket
from magpy_like.torch_interop.saved_tensor_hooks import without_saved_tensor_hooks


class GraphValues:
    """The operator graph under construction, and the nodes of the program's tensors."""

    def __init__(
        self,
        variables: Variables,
        operators: OperatorGraph,
        running: RunningOperator,
        writes: TensorWrites,
    ) -> None:
        self._variables, self._operators = variables, operators
        self._running, self._writes = running, writes
        self.operators_as_is: list[str] = []
        """For each operator on the graph that a backend must not compile, the reason."""
        self.runs_as_is: str | None = None
        """The reason why no part of the operator graph may be compiled, if any."""
        self.stays_whole: str | None = None
        """The reason why the operator graph may not be compiled in parts, if any."""
        self._custom_views: set[int] = set()
        """The memory in which custom functions have returned views."""
        self.kept_inputs: list[torch.Tensor] = []
        """The graph's inputs: the backend needs them even if the program drops them."""

    def value(self, tensor: torch.Tensor) -> fx.Node:
        """The graph's node for a tensor; an external tensor becomes an input of the graph.

        Raises:
            Split: the tensor is neither external nor an operator's result.
        """
        existing = self._operators.nodes.node_of(tensor)
        if existing is not None:
            return existing
        node = self._variables.node(tensor)
        if node is None:
            raise Split(
                SplitReason.UNKNOWN_ORIGIN, "uses a tensor that unmonitored code has created"
            )
        self.kept_inputs.append(tensor)
        return self._operators.nodes.add_input(tensor, node.node_id)

    def add_operator(
        self,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        shape: DataShape = DataShape.NEVER,
    ) -> None:
        """Add an operator that has run.

        Raises:
            Split: an input is a tensor of unknown origin.
        """
        kwargs = with_device(operation, dict(kwargs))
        with without_saved_tensor_hooks():  # a symbolic run saves tensors, too
            node = self._operators.add_operator(
                operation, args, kwargs, result, self.value, shape, not self._running.is_dynamic
            )
        for tensor in tensors_in(result):
            if type(tensor).__module__.partition(".")[0] != "torch":
                self.runs_as_is = f"an operator returns a {type(tensor).__qualname__}"
        if self._running.as_is:
            node.meta[AS_IS] = self._running.as_is
            self.operators_as_is.append(self._running.as_is)
        if self._running.differentiates and operation in custom_function_calls:
            node.meta[DIFFERENTIATES] = True
        if self._custom_views or operation in custom_function_calls:
            self._note_custom_views(node, operation, args, result)
        if operation in custom_function_calls and torch.is_grad_enabled():
            self._note_custom_writes(node, args, result)
        self._note_backward_code(node, operation, args, result)
        self._writes.note_operator(operation, args, kwargs, result)

    def _note_backward_code(
        self, node: fx.Node, operation: Callable[..., Any], args: tuple[Any, ...], result: Any
    ) -> None:
        """Let a custom function, or an operator of the program's own, run as it is if its backward
        pass depends on outside objects."""
        is_own = is_instance(operation, OpOverload | OpOverloadPacket)
        if not is_own and operation not in custom_function_calls:
            return

        def is_external(value: Any) -> bool:
            return self._variables.node(value) is not None

        nodes = [t.grad_fn for t in tensors_in(result) if t.requires_grad]
        shared = {storage_of(t) for t in tensors_in((args, result))}
        reasons = (kept_dependence(each, is_external, shared) for each in nodes)
        reason = next(filter(None, reasons), None)
        if reason is not None and AS_IS not in node.meta:
            node.meta[AS_IS] = f"the backward pass of {describe(operation)} {reason}"
            self.operators_as_is.append(node.meta[AS_IS])

    def _note_custom_views(
        self, node: fx.Node, operation: Callable[..., Any], args: tuple[Any, ...], result: Any
    ) -> None:
        """Note in the node whether the result is a custom function's view, or in its memory."""
        tensors = list(tensors_in(result))
        if operation in custom_function_calls:
            arguments = list(tensors_in(args))
            shared = set(map(storage_of, arguments)) - {0}
            self._custom_views.update(
                storage_of(tensor)
                for tensor in tensors
                if not any(tensor is each for each in arguments)
                and (tensor._is_view() or storage_of(tensor) in shared)
            )
        if any(storage_of(tensor) in self._custom_views for tensor in tensors):
            node.meta[CUSTOM_VIEW] = True

    def _note_custom_writes(self, node: fx.Node, args: tuple[Any, ...], result: Any) -> None:
        """Note in a custom function's node the arguments that have its gradient from now on."""
        results = list(tensors_in(result))
        written = {
            k - len(args): arg  # from the end: the node may lack the class, which comes first
            for k, arg in enumerate(args)
            if is_instance(arg, torch.Tensor)
            and arg.requires_grad
            and any(arg is each for each in results)
        }
        if not written:
            return
        node.meta[CUSTOM_WRITES] = tuple(written)
        memory = Counter(storage_of(tensor) for tensor, _ in self._operators.nodes.live_tensors())
        if AS_IS not in node.meta and any(memory[storage_of(t)] > 1 for t in written.values()):
            node.meta[AS_IS] = SHARED_REASON
            self.operators_as_is.append(SHARED_REASON)

    def add_item(
        self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any
    ) -> tuple[fx.Node, Any]:
        """The graph's node for a number read from a tensor, and its twin if there is one."""
        node = self._operators.numbers.add_item(operation, args, value, self.value)
        return node, node.meta.get(TWIN)

    def add_items(
        self, operation: Callable[..., Any], tensor: torch.Tensor
    ) -> Callable[[Any], fx.Node]:
        """Returns a function that adds a node for each number a tensor holds, in order.

        Raises:
            Split: the tensor is of unknown origin.
        """
        elements = self._operators.numbers.add_elements(self.value(tensor), tensor.numel())
        return lambda value: self._operators.numbers.add_item(
            operation, (tensor,), value, lambda _: next(elements)
        )

    def snapshot(self, tensor: torch.Tensor) -> fx.Node:
        """The graph's node for a tensor's present contents, which later writes leave unchanged.

        Raises:
            Split: the tensor is of unknown origin.
        """
        return self._operators.nodes.add_snapshot(self.value(tensor))

    def add_plain_result(
        self, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> fx.Node:
        """The graph's node for an operation on tensors that returns plain values.

        Raises:
            Split: an input is a tensor of unknown origin.
        """
        self.runs_as_is = "tensors' values become Python's"
        return self._operators.add_operator(operation, args, kwargs, None, self.value)

    def add_drawn(self, tensor: torch.Tensor, drawn: Expression) -> None:
        """Add a tensor made of drawn numbers as an input of the operator graph."""
        self.kept_inputs.append(tensor)
        self._operators.nodes.add_drawn(tensor, drawn)

    def is_created_inside(self, tensor: torch.Tensor) -> bool:
        """True if a running operator created the tensor: it has no node on the graph."""
        return (
            self._variables.node(tensor) is None and self._operators.nodes.node_of(tensor) is None
        )

    def replace_data(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Record ``tensor.data = value``: the tensor is another value of the graph from now on.

        Raises:
            Split: the tensor is one of the program's own intermediate values, or was written to.
        """
        node = self._variables.node(tensor)
        if node is None:
            raise Split(SplitReason.TENSOR_INTERNALS, "sets the data of an intermediate tensor")
        if self._writes.has_written(node):
            raise Split(
                SplitReason.TENSOR_INTERNALS, "sets the data of a tensor after a write to it"
            )
        if self._running.depth:
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR, "sets the data of a tensor inside an operator"
            )
        before, after = before_replacement(self.value(tensor)), self.value(value)
        if tensor.requires_grad:
            after = self._operators.nodes.graph.call_function(replace_data, (before, after))
        self._operators.nodes.set_node(tensor, after)
        self._writes.note_replaced_data(node)

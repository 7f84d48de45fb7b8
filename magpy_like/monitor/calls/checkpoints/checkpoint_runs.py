"""The run of a function under ``torch.utils.checkpoint``, which the backward pass may repeat.

The function may only apply operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.annotation import Annotation
from magpy_like.graph_operators.checkpoint_operator import CheckpointedFunction, ReentrantCheckpoint
from magpy_like.graph_operators.control_operators import is_control
from magpy_like.graph_operators.node_metadata import (
    AS_IS,
    NUMBER,
    RECOMPUTED,
    TRIGGERS_RECOMPUTATION,
    WRITES,
)
from magpy_like.monitor.calls.argument_kinds import tensors_in
from magpy_like.monitor.isolated_runs import IsolatedRun
from magpy_like.refgraph.plain_values import is_plain, storage_of
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import (
    custom_function_calls,
    next_node_number,
    set_grad_enabled,
)

if TYPE_CHECKING:
    from magpy_like.monitor.calls.checkpoints.checkpoint_calls import CheckpointCall
    from magpy_like.monitor.recording import Recording


class CheckpointRun(IsolatedRun):
    """The run of one function under a checkpoint."""

    def __init__(self, call: CheckpointCall, rec: Recording) -> None:
        super().__init__()
        self._call, self._outer = call, rec.checkpointed
        self.gradients_differ = call.reentrant
        self._last = _last(rec)
        """The last node of the operator graph when the function began."""
        self._first = next_node_number()
        """The number of the first autograd node that the function creates."""
        self._writes: list[tuple[fx.Node | None, int]] = []
        """For each write to an external tensor, the last node of the operator graph and the number
        of tensors saved for the backward pass at that time."""

    def refuse(self) -> None:
        """Stop following the function and the checkpointed function that calls it."""
        self._call.refuse()
        if self._outer is not None:
            self._outer.refuse()

    def check_call(
        self,
        annotation: Annotation,
        operation: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        super().check_call(annotation, operation, args, kwargs)
        if operation in _UNSUPPORTED_OPERATIONS:
            raise Split(
                SplitReason.CHECKPOINT,
                "computes gradients or runs a custom autograd function under a checkpoint",
            )
        if self.gradients_differ and operation in _GRADIENT_MODE_QUERIES:
            raise Split(
                SplitReason.CHECKPOINT, "queries the gradient mode under a reentrant checkpoint"
            )

    def note_write(self, rec: Recording, tensor: torch.Tensor) -> None:
        """Record that an operator, not yet on the graph, has written to a tensor.

        Raises:
            Split: this checkpoint is inside another one, so the number of repeated writes is
                unknown.
        """
        memory, own = storage_of(tensor), set(self._nodes(rec))
        known = ((t, node) for t, node in rec.operators.nodes.live_tensors() if node not in own)
        if rec.variables.node(tensor) is None and all(storage_of(t) != memory for t, _ in known):
            return
        if self._outer is not None:
            raise Split(
                SplitReason.CHECKPOINT, "writes to an external tensor under two checkpoints"
            )
        self._writes.append((_last(rec), self._call.saved_tensor_count()))

    def leave(self, rec: Recording, result: Any) -> None:
        """Mark the nodes of the function, which has returned ``result``.

        Raises:
            Split: no graph expresses the function.
        """
        nodes = self._nodes(rec)
        switched = torch.is_grad_enabled() is self._call.reentrant
        if switched or any(map(_runs_python, nodes)):
            raise Split(
                SplitReason.CHECKPOINT, "does more than tensor computations under a checkpoint"
            )
        if self._call.reentrant:
            self._check_results(rec, nodes, result)
        rec.checkpointed = self._outer
        if self._outer is not None or not self._call.is_recomputed(0):
            return
        function = self._function(rec, nodes, result)
        for node in nodes:
            node.meta[RECOMPUTED] = function
        for last, saved_tensor_count in self._writes:
            begin = 0 if last is self._last else nodes.index(last) + 1
            # The backward pass recomputes up to the last saved tensor.
            is_repeated = self._call.is_recomputed(saved_tensor_count)
            next(filter(_may_write, nodes[begin:])).meta[WRITES] = is_repeated
        # A reentrant function returns a tensor or a tuple of tensors; others any structure.
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and self._leads_to_statistics(tensor.grad_fn):
                rec.graph.value(tensor).meta[TRIGGERS_RECOMPUTATION] = True

    def _check_results(self, rec: Recording, nodes: list[fx.Node], result: Any) -> None:
        """Check the results of a reentrant checkpoint.

        Raises:
            Split: the checkpoint returns other tensors than its function.
        """
        own = set(nodes)
        outside = [tensor for tensor, node in rec.operators.nodes.live_tensors() if node not in own]
        memory = set(map(storage_of, [*outside, *self._call.tensor_arguments]))
        for value in result if type(result) is tuple else (result,):
            if isinstance(value, torch.Tensor):
                if rec.operators.nodes.node_of(value) not in own or storage_of(value) in memory:
                    raise Split(
                        SplitReason.CHECKPOINT,
                        "returns a tensor from a reentrant checkpoint that was created elsewhere",
                    )
                memory.add(storage_of(value))  # a second result must not share it
            elif not (is_plain(value) and type(result) is tuple):
                raise Split(
                    SplitReason.CHECKPOINT,
                    f"returns a {type(value).__qualname__} from a reentrant checkpoint",
                )

    def _function(self, rec: Recording, nodes: list[fx.Node], result: Any) -> CheckpointedFunction:
        if not self._call.reentrant:
            known = {rec.operators.nodes.node_of(tensor) for tensor in self._call.tensor_arguments}
            return CheckpointedFunction([node for node in known if node is not None])
        arguments = dict.fromkeys(map(rec.graph.value, self._call.tensor_arguments))
        found = {source for node in nodes for source in node.all_input_nodes} - {
            *nodes,
            *arguments,
        }
        # All of them are alive: the function has not changed any container of them.
        pairs = [pair for pair in rec.operators.nodes.live_tensors() if pair[1] in found]
        learned = [(tensor, node) for tensor, node in pairs if tensor.requires_grad]
        if any(tensor.grad_fn is not None for tensor, _ in learned):
            # The nested backward pass goes through the operators that have created them.
            rec.graph.runs_as_is = (
                "a reentrant checkpoint computes gradients of tensors that are not its arguments"
            )
        results = map(rec.graph.value, tensors_in(result))
        return ReentrantCheckpoint(list(arguments), list(results), {node for _, node in learned})

    def _leads_to_statistics(self, node: Any) -> bool:
        """True if an autograd node leads to a batch norm of this function.

        Then the backward pass runs the function again.
        """
        waiting, seen = [node], {None}
        while waiting:
            node = waiting.pop()
            if node in seen or node._sequence_nr() < self._first:
                continue
            if "BatchNorm" in node.name():
                return True
            seen.add(node)
            waiting += [other for other, _ in node.next_functions]
        return False

    def _nodes(self, rec: Recording) -> list[fx.Node]:
        """The nodes that the function has added to the graph, without inputs."""
        found: list[fx.Node] = []
        for node in reversed(rec.operators.nodes.graph.nodes):
            if node is self._last or node.op == "placeholder":
                break
            found.append(node)
        return found[::-1]


_UNSUPPORTED_OPERATIONS = {torch.autograd.grad, *custom_function_calls}


_GRADIENT_MODE_QUERIES = {torch.is_grad_enabled, set_grad_enabled}


def _last(rec: Recording) -> fx.Node | None:
    return next(iter(reversed(rec.operators.nodes.graph.nodes)), None)


def _may_write(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and NUMBER not in node.meta


def _runs_python(node: fx.Node) -> bool:
    return AS_IS in node.meta or is_control(node)

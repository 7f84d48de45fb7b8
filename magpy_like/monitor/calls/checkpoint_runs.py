"""What a function under ``torch.utils.checkpoint`` does, of which the backward pass does all again.

It may do nothing but apply operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.annotation import Annotation
from magpy_like.graph_operators.checkpoint_operator import (
    LEADS_BACK,
    RECOMPUTED,
    WRITES,
    Function,
    ReentrantFunction,
)
from magpy_like.graph_operators.control_operators import is_control
from magpy_like.monitor.calls.argument_kinds import tensors_in
from magpy_like.monitor.isolated_runs import IsolatedRun
from magpy_like.monitor.operator_graph.graph_nodes import AS_IS, NUMBER
from magpy_like.refgraph.plain_values import is_plain, storage_of
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import (
    apply_custom_function,
    next_node_number,
    set_grad_enabled,
)

if TYPE_CHECKING:
    from magpy_like.monitor.calls.checkpointed_functions import CheckpointCall
    from magpy_like.monitor.recording import Recording


class CheckpointRun(IsolatedRun):
    """One call of a function under a checkpoint, while it runs."""

    def __init__(self, call: CheckpointCall, rec: Recording) -> None:
        super().__init__()
        self._call, self._outer = call, rec.checkpointed
        self.gradients_differ = call.reentrant
        self._last = _last(rec)
        """Where the operator graph ended when the function began."""
        self._first = next_node_number()
        """The number of the first node of the autograd graph that the function makes."""
        self._writes: list[tuple[fx.Node | None, int]] = []
        """Where the operator graph ended when something from outside was written to, and how many
        tensors were saved for the backward pass by then."""

    def refuse(self) -> None:
        """Not to be followed again, nor is what calls it under another checkpoint."""
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
        if operation in _NOT_INSIDE:
            raise Split(
                SplitReason.CHECKPOINT,
                "computes gradients or runs a custom autograd function under a checkpoint",
            )
        if self.gradients_differ and operation in _ABOUT_MODE:
            raise Split(
                SplitReason.CHECKPOINT, "queries the gradient mode under a reentrant checkpoint"
            )

    def note_write(self, rec: Recording, tensor: torch.Tensor) -> None:
        """An operator, which is not on the graph yet, has written to a tensor.

        Raises:
            Split: a checkpoint inside this one has done so: who knows how often it will again.
        """
        memory, own = storage_of(tensor), set(self._nodes(rec))
        known = ((t, node) for t, node in rec.operators.live_tensors() if node not in own)
        if rec.node(tensor) is None and all(storage_of(t) != memory for t, _ in known):
            return
        if self._outer is not None:
            raise Split(
                SplitReason.CHECKPOINT, "writes to an external tensor under two checkpoints"
            )
        self._writes.append((_last(rec), self._call.saved_tensor_count()))

    def leave(self, rec: Recording, result: Any) -> None:
        """The function has returned ``result``.

        Raises:
            Split: it has done what cannot be part of a graph.
        """
        nodes = self._nodes(rec)
        switched = torch.is_grad_enabled() is self._call.reentrant
        if switched or any(map(_is_pythons, nodes)):
            raise Split(
                SplitReason.CHECKPOINT, "does more than tensor computations under a checkpoint"
            )
        if self._call.reentrant:
            self._look_at_results(rec, nodes, result)
        rec.checkpointed = self._outer
        if self._outer is not None or not self._call.is_recomputed(0):
            return
        function = self._function(rec, nodes, result)
        for node in nodes:
            node.meta[RECOMPUTED] = function
        for last, saved_tensor_count in self._writes:
            begin = 0 if last is self._last else nodes.index(last) + 1
            # The backward pass computes up to what is saved last.
            again = self._call.is_recomputed(saved_tensor_count)
            next(filter(_may_write, nodes[begin:])).meta[WRITES] = again
        # A reentrant function gives a tensor or a tuple of them; others give any structure.
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and self._leads_to_statistics(tensor.grad_fn):
                rec.graph_value(tensor).meta[LEADS_BACK] = True

    def _look_at_results(self, rec: Recording, nodes: list[fx.Node], result: Any) -> None:
        """
        Raises:
            Split: the checkpoint gives other tensors than its function.
        """
        own = set(nodes)
        outside = [tensor for tensor, node in rec.operators.live_tensors() if node not in own]
        memory = set(map(storage_of, [*outside, *self._call.tensor_arguments]))
        for value in result if type(result) is tuple else (result,):
            if isinstance(value, torch.Tensor):
                if rec.operators.node_of(value) not in own or storage_of(value) in memory:
                    raise Split(
                        SplitReason.CHECKPOINT,
                        "returns a tensor from a reentrant checkpoint that was created elsewhere",
                    )
                memory.add(storage_of(value))  # nor is one that shares it
            elif not (is_plain(value) and type(result) is tuple):
                raise Split(
                    SplitReason.CHECKPOINT,
                    f"returns a {type(value).__qualname__} from a reentrant checkpoint",
                )

    def _function(self, rec: Recording, nodes: list[fx.Node], result: Any) -> Function:
        if not self._call.reentrant:
            known = {rec.operators.node_of(tensor) for tensor in self._call.tensor_arguments}
            return Function([node for node in known if node is not None])
        given = dict.fromkeys(map(rec.graph_value, self._call.tensor_arguments))
        found = {source for node in nodes for source in node.all_input_nodes} - {
            *nodes,
            *given,
        }
        # All of them are alive: the function has changed nothing that holds them.
        pairs = [pair for pair in rec.operators.live_tensors() if pair[1] in found]
        learned = [(tensor, node) for tensor, node in pairs if tensor.requires_grad]
        if any(tensor.grad_fn is not None for tensor, _ in learned):
            # In the middle of a backward pass, another one goes through what they are made of.
            rec.runs_as_is = "a reentrant checkpoint takes gradients of what it is not given"
        results = map(rec.graph_value, tensors_in(result))
        return ReentrantFunction(list(given), list(results), {node for _, node in learned})

    def _leads_to_statistics(self, node: Any) -> bool:
        """Whether the gradient of a tensor leads to a batch norm of this function, so that the
        backward pass runs the function again."""
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
        """What the function has put on the graph, but for tensors that are found there."""
        found: list[fx.Node] = []
        for node in reversed(rec.operators.graph.nodes):
            if node is self._last or node.op == "placeholder":
                break
            found.append(node)
        return found[::-1]


_NOT_INSIDE = {
    torch.autograd.grad,
    torch.autograd.Function.apply.__func__,
    apply_custom_function,
}


_ABOUT_MODE = {torch.is_grad_enabled, set_grad_enabled}


def _last(rec: Recording) -> fx.Node | None:
    return next(iter(reversed(rec.operators.graph.nodes)), None)


def _may_write(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and NUMBER not in node.meta


def _is_pythons(node: fx.Node) -> bool:
    return AS_IS in node.meta or is_control(node)

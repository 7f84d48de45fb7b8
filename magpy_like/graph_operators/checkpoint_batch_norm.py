"""Batch norm statistics of checkpointed functions: updates that wait for the backward pass.

A batch norm under a checkpoint updates its running statistics twice: in the forward pass, and when
the backward pass first needs the function's results and recomputes it. By then other calls may
have updated them too, so the second update starts from the statistics at that time:
``old * scale + change``. The graph computes ``change`` alone, as the update that the same batch
norm makes to statistics of zero.

Autograd transports it. Each function has an **auxiliary input**, a further input of the graph, and
the gradient that the backward pass computes for that input is ``change``. So there is no update
where no gradient reaches the function; eager mode does not recompute it either.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from magpy_like.torch_compat.autograd import current_backward_pass, is_node_needed, set_version
from magpy_like.torch_compat.tracing.fake_tensors import detect_fake_mode

Update = tuple[Any, float, Any]
"""(statistics to update, scale, change): the change is a number or a tensor."""


class StatisticsUpdateUnsupported(Exception):
    """AOTAutograd's node of autograd's graph does more than to run the passes, and so hides the
    gradients of auxiliary inputs."""


def update_on_recompute(result: Tensor, updates: Sequence[Update]) -> Tensor:
    """Mark ``result`` as that of a function that makes ``updates`` when its gradient arrives.

    The identity: a backend that compiles the graph makes the updates. For gradients of gradients it
    runs the graph once more, and each further backward pass recomputes the function.
    """
    recomputations: Recomputations | None = getattr(_thread, "recomputations", None)
    return result if recomputations is None else recomputations.attach(result, updates)


_thread = threading.local()
"""Attribute ``recomputations``: those of the compiled call that this thread runs once more."""


class Recomputations:
    """The statistics that the checkpointed functions of one compiled call update, and the backward
    passes that have recomputed each function: one pass does it once."""

    def __init__(self, targets: Sequence[Sequence[Tensor]]) -> None:
        """``targets``: for each function the statistics, in the order of its updates."""
        self._targets = targets
        self._passes: list[set[int]] = [set() for _ in targets]
        self._attached = 0
        self._outer: int | None = None
        """The pass that takes gradients by a second run: that run's have numbers of their own."""

    def update(self, function: int, updates: Iterable[tuple[float, Any]]) -> None:
        """Make the updates (scale, change) of a function, unless this pass has made them."""
        number = current_backward_pass() if self._outer is None else self._outer
        if number in self._passes[function]:
            return
        self._passes[function].add(number)
        for target, (scale, change) in zip(self._targets[function], updates, strict=True):
            _update(target, scale, change)

    @contextlib.contextmanager
    def second_run(self) -> Iterator[None]:
        """Runs the program of the call once more inside of a backward pass."""
        self._attached, self._outer = 0, current_backward_pass()
        before = getattr(_thread, "recomputations", None)
        _thread.recomputations = self
        try:
            yield
        finally:
            self._outer, _thread.recomputations = None, before

    def attach(self, result: Tensor, updates: Sequence[Update]) -> Tensor:
        """``result``; passes that compute its gradient, or that of its gradient, make the updates
        of the next function."""
        function, self._attached = self._attached, self._attached + 1
        changes = [
            (scale, change.detach() if isinstance(change, Tensor) else change)
            for _, scale, change in updates
        ]
        return _UpdatingIdentity.apply(result, lambda: self.update(function, changes))


class _UpdatingIdentity(torch.autograd.Function):
    """The identity; ``update`` is called in each backward pass, of any order."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, update: Callable[[], None]) -> Tensor:
        ctx.update = update
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.update()
        return _UpdatingIdentity.apply(gradient, ctx.update), None


class _StatisticsChange(torch.autograd.Function):
    """The identity on ``result``; the gradient of the auxiliary input is ``change``."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, auxiliary: Tensor, change: Tensor) -> Tensor:
        ctx.save_for_backward(change)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (change,) = ctx.saved_tensors
        # A data dependency on the gradient, so that the change is computed with it or not at all.
        nothing = gradient.narrow(0, 0, 0).sum().to(change.dtype)
        return gradient, change + nothing, None


def _attach_change(result: Tensor, auxiliary: Tensor, changes: Sequence[Tensor]) -> Tensor:
    return _StatisticsChange.apply(result, auxiliary, torch.cat(changes))


class CheckpointStatistics:
    """The updates of a graph's checkpointed functions, in the order in which the functions run."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        """Add an auxiliary input to ``gm`` for each function that makes updates, in place."""
        self._updates: list[list[Update]] = []
        """Statistics by the index of their input; changes as slices of the auxiliary gradient."""
        self.auxiliary_inputs: list[Tensor] = []
        self._first = len(example_inputs)
        self._leaves: list[list[int]] = []
        """Per function, the inputs whose gradients depend on the gradient of its result."""
        inputs = gm.graph.find_nodes(op="placeholder")
        for node in gm.graph.find_nodes(op="call_function", target=update_on_recompute):
            result, updates = node.args
            indexed, changes, end = [], [], 0
            for target, scale, change in updates:
                index = inputs.index(target)
                like = example_inputs[index]
                if isinstance(change, fx.Node):
                    # The zeros that it starts from; reading the statistics would keep them alive.
                    change.target, change.args = torch.zeros, (tuple(like.shape),)
                    change.kwargs = {"dtype": like.dtype, "device": like.device}
                    changes.append(change)
                    change, end = slice(end, end + like.numel()), end + like.numel()
                    changed = like
                indexed.append((index, scale, change))
            self._updates.append(indexed)
            zeros = torch.zeros(end, dtype=changed.dtype, device=changed.device)
            self.auxiliary_inputs.append(zeros)
            with gm.graph.inserting_after(gm.graph.find_nodes(op="placeholder")[-1]):
                auxiliary = gm.graph.placeholder(f"auxiliary_{len(self.auxiliary_inputs)}")
            with gm.graph.inserting_before(node):
                new = gm.graph.call_function(_attach_change, (result, auxiliary, changes))
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
        if self.auxiliary_inputs:
            gm.recompile()

    def make_example_inputs(self, inputs: Sequence[Any]) -> list[Tensor]:
        """The auxiliary inputs for the trace, beside the graph's example ``inputs``.

        Where sizes of those are symbolic, AOTAutograd would make the sizes of auxiliary inputs
        symbolic too, which no guard checks.
        """
        made = [torch.zeros_like(zeros, requires_grad=True) for zeros in self.auxiliary_inputs]
        mode = detect_fake_mode(list(inputs))
        return made if mode is None else [mode.from_tensor(t, static_shapes=True) for t in made]

    def inspect_joint_graph(self, joint: fx.GraphModule, forward_outputs: int) -> None:
        """Read from the joint graph which inputs' gradients depend on each function's gradient."""
        (outputs,) = joint.graph.output_node().args
        gradients, auxiliary = self._split_gradients(outputs[forward_outputs:])
        before = len(gradients) - self._first  # lifted constants, which torch puts first
        self._leaves = []
        for source in auxiliary:
            while source.target is not torch.ops.aten.slice.Tensor:
                source = source.all_input_nodes[-1]
            reached = {source.args[0]}
            for node in joint.graph.nodes:
                if not reached.isdisjoint(node.all_input_nodes):
                    reached.add(node)
            self._leaves.append([k for k, g in enumerate(gradients[before:]) if g in reached])

    def _split_gradients(self, gradients: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """(gradients of the program's inputs, gradients of the auxiliary inputs, which are last)"""
        first = len(gradients) - len(self.auxiliary_inputs)
        return gradients[:first], gradients[first:]

    def recomputations(self, args: Sequence[Any]) -> Recomputations:
        """Those of a call with these arguments."""
        return Recomputations([[args[k] for k, _, _ in updates] for updates in self._updates])

    def apply_updates(
        self, recomputations: Recomputations, gradients: Sequence[Any], executed: set[int]
    ) -> tuple[Any, ...]:
        """Update the statistics of the functions that a backward pass recomputes, last one first.

        ``executed`` are the indices of inputs whose gradients the pass continues with. Returns the
        gradients, None for the auxiliary inputs.
        """
        gradients, changes = self._split_gradients(gradients)
        functions = [*zip(self._updates, changes, self._leaves, strict=True)]
        for function, (updates, change, leaves) in reversed([*enumerate(functions)]):
            if change is not None and not executed.isdisjoint(leaves):
                parts = (
                    (scale, change[part] if type(part) is slice else part)
                    for _, scale, part in updates
                )
                recomputations.update(function, parts)
        return (*gradients, *[None] * len(changes))


def _update(target: Tensor, scale: float, change: Any) -> None:
    version = target._version
    with torch.no_grad():
        if scale != 1:
            target.mul_(scale)
        target.add_(change)
    if isinstance(change, Tensor):  # a batch norm writes without a new version; ``add_`` with one
        set_version((target,), (version,))


def functions_of_inputs(ctx: Any, tensor_inputs: Sequence[int]) -> dict[int, Any]:
    """Input index -> the node of autograd's graph that the gradient of that input goes to.

    ``tensor_inputs`` are the indices of the inputs that are tensors: the nodes that follow ``ctx``
    are one per tensor. A tensor may require gradients and have none: a view that was made under
    ``no_grad``.
    """
    pairs = zip(tensor_inputs, ctx.next_functions, strict=True)
    return {k: function for k, (function, _) in pairs if function is not None}


def find_executed_inputs(ctx: Any, tensor_inputs: Sequence[int]) -> set[int]:
    """The indices of the inputs whose gradients this backward pass continues with."""
    functions = functions_of_inputs(ctx, tensor_inputs)
    return {k for k, function in functions.items() if _is_executed(function)}


def _is_executed(node: Any) -> bool:
    try:
        return is_node_needed(node)
    except RuntimeError:  # a leaf among the inputs of `torch.autograd.grad`
        return True


def append_auxiliary_inputs(
    call: Callable[..., Any], inputs: Sequence[Tensor]
) -> Callable[..., Any]:
    return lambda *args: call(*args, *inputs)

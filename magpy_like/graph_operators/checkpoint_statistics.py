"""Statistics that a checkpointed function writes to when it runs again, in the backward pass.

A batch norm under a checkpoint counts twice: in the forward pass, and when the backward pass first
needs what its function computes. By then others may have counted too, so it goes on from what the
statistics hold then: ``old * scale + change``, of which the graph has ``change`` alone, as what the
same batch norm makes of zeros. Autograd hands it on: each function has a **tap**, a further input
of the graph, and the gradient that the backward pass gives for that is ``change``. So there is none
where no gradient reaches the function, which does not run again in eager mode either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from magpy_like.torch_compat.autograd import is_node_needed
from magpy_like.torch_compat.fake_tensors import detect_fake_mode

Update = tuple[Any, float, Any]
"""What is written to, by what it is multiplied, and what is added: a number or a tensor."""


class NotWritten(Exception):
    """AOTAutograd's node of autograd's graph does more than to run the passes, and so hides what
    they give for taps."""


def written_again(result: Tensor, updates: Sequence[Update]) -> Tensor:
    """``result`` of a function that makes these updates when its gradient arrives, which whoever
    compiles the graph has to see to."""
    return result


class _Tap(torch.autograd.Function):
    """The gradient of the tap is ``change``, if there is one for ``result``."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, tap: Tensor, change: Tensor) -> Tensor:
        ctx.save_for_backward(change)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (change,) = ctx.saved_tensors
        # Made of the gradient, too, as far as the graph tells.
        nothing = gradient.narrow(0, 0, 0).sum().to(change.dtype)
        return gradient, change + nothing, None


def _tapped(result: Tensor, tap: Tensor, changes: Sequence[Tensor]) -> Tensor:
    return _Tap.apply(result, tap, torch.cat(changes))


class Again:
    """The updates of a graph's checkpointed functions, in the order in which they run."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        """Gives ``gm`` a tap for each function that makes some."""
        self._updates: list[list[Update]] = []
        """With the places of inputs, and those of tensors in a tap's gradient, as slices."""
        self.taps: list[Tensor] = []
        self._first = len(example_inputs)
        self._leaves: list[list[int]] = []
        """The inputs that the gradient of each function leads to."""
        inputs = gm.graph.find_nodes(op="placeholder")
        for node in gm.graph.find_nodes(op="call_function", target=written_again):
            result, updates = node.args
            places, changes, at = [], [], 0
            for target, scale, change in updates:
                place = inputs.index(target)
                like = example_inputs[place]
                if isinstance(change, fx.Node):
                    # The zeros that it begins with, which must not keep the statistics for later.
                    change.target, change.args = torch.zeros, (tuple(like.shape),)
                    change.kwargs = {"dtype": like.dtype, "device": like.device}
                    changes.append(change)
                    change, at = slice(at, at + like.numel()), at + like.numel()
                    tap_like = like
                places.append((place, scale, change))
            self._updates.append(places)
            self.taps.append(torch.zeros(at, dtype=tap_like.dtype, device=tap_like.device))
            with gm.graph.inserting_after(gm.graph.find_nodes(op="placeholder")[-1]):
                tap = gm.graph.placeholder(f"tap_{len(self.taps)}")
            with gm.graph.inserting_before(node):
                node.replace_all_uses_with(gm.graph.call_function(_tapped, (result, tap, changes)))
            gm.graph.erase_node(node)
        if self.taps:
            gm.recompile()

    def examples(self, beside: Sequence[Any]) -> list[Tensor]:
        """The taps, as the graph is traced with them and the inputs ``beside`` them. Where sizes of
        those vary, AOTAutograd would take the sizes of taps to vary, too, which nobody guards."""
        made = [torch.zeros_like(tap, requires_grad=True) for tap in self.taps]
        mode = detect_fake_mode(list(beside))
        return made if mode is None else [mode.from_tensor(tap, static_shapes=True) for tap in made]

    def see_joint(self, joint: fx.GraphModule, forward_outputs: int) -> None:
        """Learn from the graph of both passes where gradients of functions lead to."""
        (outputs,) = joint.graph.output_node().args
        gradients, taps = self._parted(outputs[forward_outputs:])
        before = len(gradients) - self._first  # constants of the graph, which torch puts in front
        self._leaves = []
        for tap in taps:
            source = tap
            while source.target is not torch.ops.aten.slice.Tensor:
                source = source.all_input_nodes[-1]
            reached = {source.args[0]}
            for node in joint.graph.nodes:
                if not reached.isdisjoint(node.all_input_nodes):
                    reached.add(node)
            self._leaves.append([k for k, g in enumerate(gradients[before:]) if g in reached])

    def _parted(self, gradients: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Those of inputs, and those of taps, which come last."""
        first = len(gradients) - len(self.taps)
        return gradients[:first], gradients[first:]

    def targets(self, args: Sequence[Any]) -> dict[int, Tensor]:
        """What is to be written to after a call with these arguments."""
        return {place: args[place] for updates in self._updates for place, _, _ in updates}

    def write(
        self, targets: dict[int, Tensor], gradients: Sequence[Any], wanted: set[int]
    ) -> tuple[Any, ...]:
        """Make the updates of the functions that run again in a backward pass, the last one first.

        ``wanted`` are the places of inputs whose gradients go on. Returns the gradients without
        those for taps.
        """
        gradients, changes = self._parted(gradients)
        for updates, change, leaves in reversed(
            [*zip(self._updates, changes, self._leaves, strict=True)]
        ):
            if change is not None and not wanted.isdisjoint(leaves):
                for place, scale, part in updates:
                    _update(targets[place], scale, change[part] if type(part) is slice else part)
        return (*gradients, *[None] * len(changes))


def _update(target: Tensor, scale: float, change: Any) -> None:
    with torch.no_grad():
        if scale != 1:
            target.mul_(scale)
        target.add_(change)


def wanted(ctx: Any) -> set[int]:
    """The inputs, by place, whose gradients this backward pass goes on with."""
    places = [k for k, needed in enumerate(ctx.needs_input_grad) if needed]
    makers = [maker for maker, _ in ctx.next_functions if maker is not None]
    return {k for k, maker in zip(places, makers, strict=True) if _is_reached(maker)}


def _is_reached(node: Any) -> bool:
    try:
        return is_node_needed(node)
    except RuntimeError:  # it is a leaf that `torch.autograd.grad` was asked for
        return True


def with_taps(call: Callable[..., Any], taps: Sequence[Tensor]) -> Callable[..., Any]:
    return lambda *args: call(*args, *taps)

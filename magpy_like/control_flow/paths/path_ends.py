"""Both ends of an isolated path: the state in which a branch begins, and the state at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from magpy_like.monitor.isolated_runs import BranchRun, is_iterator
from magpy_like.monitor.objects.iterators import PEEKABLE
from magpy_like.monitor.recording import Recording
from magpy_like.splitting.frame_state import FrameState

ADVANCED = object()
"""Replaces an iterator from which a path has taken elements."""


@dataclass
class PathEnd:
    """Locals, operand stack and recorded nodes where an isolated path ends."""

    locals: tuple[Any, ...]
    stack: tuple[Any, ...]
    run: BranchRun | None
    """None if the path is empty."""
    nodes: list[fx.Node]
    is_at_head: bool = False
    """Whether the path ends at the head of its loop, not at the join point."""

    def restore(self, original: Callable[[Any], Any]) -> None:
        """Replace copies by the program's values."""
        self.locals, self.stack = (
            tuple(map(original, self.locals)),
            tuple(map(original, self.stack)),
        )

    def created(self, tensor: torch.Tensor) -> bool:
        """True if the path has allocated the tensor's memory."""
        return self.run is not None and self.run.tensors.owns(tensor)


def begin_branch(state: FrameState, truth: bool) -> FrameState:
    """The state in which the branch for a ``truth`` of the tested operand begins.

    Args:
        state: the frame at its conditional jump.
    """
    instruction = state.instruction
    jumps = truth is ("IF_TRUE" in instruction.name)
    keeps = jumps and instruction.name.endswith("_OR_POP")
    assert instruction.target is not None
    stack = state.stack if keeps else state.stack[:-1]
    return replace(state, offset=instruction.target if jumps else instruction.end, stack=stack)


def copy_iterator(value: Any, rec: Recording) -> Any:
    """A copy of an iterator that the program has created, at the same position; any other value
    itself."""
    if type(value) not in PEEKABLE or rec.variables.node(value) is not None:
        return value
    maker, arguments, *state = value.__reduce__()
    copies = [copy_iterator(argument, rec) for argument in arguments]
    if any(is_iterator(one) and one is other for one, other in zip(copies, arguments, strict=True)):
        return value  # the copy would advance a generator or an external iterator
    made = maker(*copies)
    if state and state[0] is not None:
        made.__setstate__(state[0])
    return made

"""The state of the frame in which a branch or loop is about to become an operator."""

from __future__ import annotations

import sys
from types import FrameType

from magpy_like.monitor.context import Context
from magpy_like.monitor.instructions.step import Step
from magpy_like.split_points import LoopNotMergeable
from magpy_like.splitting.frame_state import (
    FrameState,
    capture,
    is_restoring,
    origins,
    unresumable_reason,
)


def capture_state(context: Context, step: Step) -> FrameState:
    """The state of the frame before an instruction.

    Raises:
        Split: the monitor does not see the frame's state there.
    """
    frame = step.frame
    if context.recording.running.depth or context.suspension.depth:
        raise LoopNotMergeable("it runs inside an operator")
    if is_restoring(frame.f_code, step.offset):
        raise LoopNotMergeable("a continuation is being restored")
    return capture(frame, step.stack, step.offset, sys.exception())


def check_resumable(state: FrameState) -> None:
    """Check that a continuation can start from a state.

    Raises:
        Split: none can.
    """
    if state.handled_exception is not None:
        raise LoopNotMergeable("an exception is being handled")
    if reason := unresumable_reason(state):
        raise LoopNotMergeable(reason)


def shift_of(frame: FrameType) -> int:
    """The size in bytes of the prefix of a continuation's code; 0 for the program's own code."""
    origin = origins.get(frame.f_code)
    return origin.shift if origin is not None else 0

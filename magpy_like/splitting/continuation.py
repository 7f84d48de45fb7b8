"""Continuations: the rest of a program after a split, with records of its own (MagPy, section
5.3.1; design, section 6)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from magpy_like.monitor.call_operands import without_null
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.splitting.continuation_functions import run_chain
from magpy_like.splitting.frame_layout import Layout, UnresumableState
from magpy_like.splitting.frame_state import (
    FrameState,
    capture,
    is_restoring,
    line_of,
    origins,
    pushes_two_entries,
)
from magpy_like.splitting.native_instruction import EXECUTABLE_INSTRUCTIONS
from magpy_like.splitting.pending_instructions import suspend


class Continuation:
    """The rest of a program after a split, called with the values of its active frames."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, *values: Any) -> Any:
        raised = values[-1] if self.layout.raised else None
        return run_chain(self.layout.build(values), raised)

    def __repr__(self) -> str:
        frame = self.layout.frames[0]
        line = line_of(frame.code, frame.offset)
        return f"{frame.code.co_qualname}, from line {line} on"

    def in_words(self, condition: str) -> str:
        """A condition on values by their positions, such as ``args[2] == 3``, with the names that
        the program has for them."""
        return _POSITION.sub(lambda found: self._name(int(found[1])) or found[0], condition)

    def _name(self, position: int) -> str | None:
        """The program's name for a value; None for one that no frame holds."""
        location = self.layout.slot_of(position)
        if location is None:
            return None
        number, slot, _ = location
        frame = self.layout.frames[number]
        code = frame.code
        if slot is not None:
            cells = [cell for cell in code.co_cellvars if cell not in code.co_varnames]
            return (*code.co_varnames, *cells, *code.co_freevars)[slot]
        line = line_of(frame.code, frame.offset)
        if position == self.layout.result_position:
            return f"a result in line {line} of {code.co_qualname}"
        return f"an operand in line {line} of {code.co_qualname}"


_POSITION = re.compile(r"\bargs\[(\d+)\]")


def active_frames(
    frame: FrameType,
    root: FrameType,
    step_of: Callable[[FrameType], tuple[int, tuple[Any, ...]] | None],
    handled_exception: BaseException | None,
) -> tuple[list[FrameType], list[FrameState]]:
    """The chain of active frames from the split to the root.

    Args:
        frame: the innermost frame, before a dynamic instruction.
        step_of: returns the offset and operand stack of a frame's instruction; None for a frame
            that the monitor does not follow.
        handled_exception: the exception that the innermost frame handles.

    Returns:
        The frames and their states, innermost first; the outer states with pending instructions.

    Raises:
        UnresumableState: one of the frames cannot be resumed.
    """
    frames, states = [], []
    current: FrameType | None = frame
    while current is not None:
        step = step_of(current)
        if step is None:
            raise UnresumableState(
                f"{current.f_code.co_qualname} is code that the monitor does not follow"
            )
        offset, stack = step
        if current is frame and is_restoring(current.f_code, offset):
            raise UnresumableState("a continuation is being restored")
        frames.append(current)
        try:
            states.append(capture(current, stack, offset, handled_exception))
        except ValueError as error:
            raise UnresumableState(str(error)) from None
        if current is root:
            break
        current = current.f_back
    else:
        raise UnresumableState("the program's first frame is not active")
    name = states[0].instruction.name
    if name not in EXECUTABLE_INSTRUCTIONS:
        raise UnresumableState(f"{name} cannot be executed on its own")
    chain = suspend(states)
    if is_instance(chain, str):
        raise UnresumableState(chain)
    return frames, chain


def state_after(state: FrameState, frame: FrameType) -> FrameState:
    """The state of the innermost frame after its instruction, equal to the result of
    :func:`~magpy_like.splitting.native_instruction.execute_instruction`.

    Raises:
        UnresumableState: no continuation can start in the state after the instruction.
    """
    try:
        after = capture(frame, handled_exception=sys.exception())
    except ValueError as error:
        raise UnresumableState(str(error)) from None
    if pushes_two_entries(state.instruction) and without_null(after.stack[-2:]) is NULL:
        raise UnresumableState(
            "a method is on the operand stack"
        )  # `execute_instruction` pushes it bound
    return after


def original_function(function: Any) -> Any:
    """The program's own function, for a continuation's function; any other function itself."""
    return function.__wrapped__ if getattr(function, "__code__", None) in origins else function

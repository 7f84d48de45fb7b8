"""Frame chains as a layout and a flat list of values, the form that guards and mocks handle.

A mock passes the state at a split to the continuation as plain values, and the continuation's own
records guard them like arguments. The layout is the constant part: code, offsets, and which slots
are bound. States with equal layouts have the same continuation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import (
    BuiltinMethodType,
    CodeType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from magpy_like.bytecode.instruction_stream import instructions
from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.stack_entry_kinds import EntryKind, stack_kinds
from magpy_like.monitor.objects.finalizers import may_keep_alive
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import bind
from magpy_like.splitting.frame_state import (
    FrameState,
    PendingInstruction,
    ResultUse,
    with_current_exceptions,
    with_previous_exceptions,
)


class UnresumableState(Exception):
    """No continuation can start in this state; the message states the reason."""


Slot = bool | str
"""Whether a slot holds a value. A name denotes the native method of that name, bound to the
value: such a method, like ``file.__exit__`` in a ``with``, is a new object at each call."""


@dataclass(frozen=True)
class FrameLayout:
    """A frame's state without the values: the slots and operands that are bound."""

    code: CodeType
    offset: int
    locals: tuple[Slot, ...]
    stack: tuple[Slot, ...]
    result_use: ResultUse | None
    has_completion: bool

    @property
    def handles_exception(self) -> bool:
        """True if the frame is handling an exception."""
        kinds = stack_kinds(self.code)[instructions(self.code)[self.offset].offset]
        return EntryKind.PREVIOUS_EXCEPTION in kinds[: len(self.stack)]


@dataclass(frozen=True)
class Layout:
    """The layout of a chain of active frames, innermost first."""

    frames: tuple[FrameLayout, ...]
    raised: bool = False
    """Whether the innermost frame's instruction has raised an exception, which is the last
    value."""

    def build(self, values: Sequence[Any]) -> list[FrameState]:
        """The states with these values, in the order in which ``lay_out`` returns them."""
        source = iter(values)
        states = [build_frame(frame, source) for frame in self.frames]
        if self.handles_exception:
            handled_exception = None
            for i in reversed(range(len(states))):
                states[i] = with_previous_exceptions(states[i], handled_exception)
                handled_exception = states[i].handled_exception
        return states

    @property
    def handles_exception(self) -> bool:
        """True if one of the frames is handling an exception."""
        return any(frame.handles_exception for frame in self.frames)

    @property
    def function_positions(self) -> frozenset[int]:
        """The positions of the frames' functions among the values."""
        positions, position = [], 0
        for frame in self.frames:
            positions.append(position)
            position += 1 + sum(map(bool, (*frame.locals, *frame.stack))) + frame.has_completion
        return frozenset(positions)

    @property
    def result_position(self) -> int | None:
        """The position of the last instruction's result among the values; None without a result."""
        inner = self.frames[0]
        if self.raised or not inner.stack or inner.stack[-1] is not True:
            return None
        return sum(map(bool, inner.locals)) + sum(map(bool, inner.stack))

    def slot_of(self, position: int) -> tuple[int, int | None, int] | None:
        """The location of a value: the frame's number, the slot of a local variable (None for
        an operand), and the depth on the operand stack. None for a value that no frame holds.
        """
        remaining = position
        for number, frame in enumerate(self.frames):
            slots = [slot for slot, bound in enumerate(frame.locals) if bound]
            depths = [len(frame.stack) - i for i, bound in enumerate(frame.stack) if bound]
            if remaining == 0:
                return None  # the function
            if remaining <= len(slots):
                return number, slots[remaining - 1], 0
            if remaining <= len(slots) + len(depths):
                return number, None, depths[remaining - 1 - len(slots)]
            remaining -= 1 + len(slots) + len(depths)
            if frame.has_completion:
                if remaining == 0:
                    return None
                remaining -= 1
        return None


def lay_out(
    states: Sequence[FrameState], raised: BaseException | None = None
) -> tuple[Layout, list[Any]]:
    """The layout of a chain of states, and its values.

    Args:
        raised: the exception that the innermost frame's instruction has raised.
    """
    values: list[Any] = []
    frames = tuple([lay_out_frame(state, values) for state in states])
    if raised is not None:
        values.append(raised)
    return Layout(frames, raised is not None), values


def lay_out_frame(state: FrameState, values: list[Any]) -> FrameLayout:
    """The layout of one frame. Its values are appended to ``values``."""
    live = live_locals(state.code, state.offset)
    values.append(state.function)
    slots = tuple(
        [
            (slot in live or may_keep_alive(v)) and _put(v, values)
            for slot, v in enumerate(state.locals)
        ]
    )
    stack = tuple([_put(value, values) for value in with_current_exceptions(state)])
    pending = state.pending
    result_use, complete = (
        (None, None) if pending is None else (pending.result_use, pending.complete)
    )
    if complete is not None:
        values.append(complete)
    return FrameLayout(state.code, state.offset, slots, stack, result_use, complete is not None)


def _put(value: Any, values: list[Any]) -> Slot:
    if value is NULL:
        return False
    if is_instance(value, BuiltinMethodType | MethodWrapperType):
        name, receiver = value.__name__, value.__self__
        found = lookup_in_type(type(receiver), name)
        if is_instance(found, _METHODS) and bind(found, receiver) == value:
            values.append(receiver)
            return name
    values.append(value)
    return True


_METHODS = (MethodDescriptorType, WrapperDescriptorType)


def _take(slot: Slot, source: Iterator[Any]) -> Any:
    if slot is True:
        return next(source)
    if slot is False:
        return NULL
    receiver = next(source)
    return bind(lookup_in_type(type(receiver), slot), receiver)


def build_frame(frame: FrameLayout, source: Iterator[Any]) -> FrameState:
    """The state of one frame, with the next values of ``source``."""
    function = next(source)
    slots = tuple([_take(slot, source) for slot in frame.locals])
    stack = tuple([_take(slot, source) for slot in frame.stack])
    complete = next(source) if frame.has_completion else None
    pending = None if frame.result_use is None else PendingInstruction(frame.result_use, complete)
    return FrameState(function, frame.code, frame.offset, slots, stack, None, pending)

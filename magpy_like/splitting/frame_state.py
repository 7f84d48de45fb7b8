"""The state of an open frame: what has to be known to run the rest of it later, elsewhere.

A cut leaves a chain of open frames (design, section 6): the innermost is about to execute an
instruction, every other one is inside the instruction that called the next.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from magpy_like.bytecode.exception_table import handler_of
from magpy_like.bytecode.instruction_stream import Instruction, instructions, stack_effect
from magpy_like.bytecode.live_locals import slot_count
from magpy_like.bytecode.operand_kinds import EntryKind, stack_kinds
from magpy_like.native import NULL, frame_function, frame_locals, frame_stack
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.splitting.frame_layout import FrameLayout


class ResultUse(Enum):
    """What becomes of the value that a frame waits for, when it comes."""

    PUSH = "it is pushed, the next instruction follows"
    DROP = "it is dropped, the next instruction follows"
    PUSH_UNBOUND = "it is pushed over an empty slot, as an attribute that will be called"
    TEST = "it replaces the operand, and the same instruction tests it"
    TEST_AND_KEEP = "it decides whether to jump with the operand or go on without it"
    ITERATE = "it is pushed; but StopIteration ends the loop"


@dataclass(frozen=True, slots=True)
class PendingInstruction:
    """How the instruction that a frame is in the middle of goes on.

    `complete` turns what the callee returned into the instruction's own result, None when that is
    the same.
    """

    result_use: ResultUse
    complete: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class FrameState:
    """An open frame of `function` at the instruction at `offset` (bytes) of `code`.

    `locals` are the raw slots as `frame_locals` gives them: cells unopened, NULL where unbound.
    `stack` is the operand stack, bottom first, NULL where a slot is empty: all of it while
    `pending` is None, and what remains below the operands of the instruction when the frame is
    inside of it. `handled_exception` is `sys.exception()` as this frame sees it.
    """

    function: FunctionType
    code: CodeType
    offset: int
    locals: tuple[Any, ...]
    stack: tuple[Any, ...]
    handled_exception: BaseException | None = None
    pending: PendingInstruction | None = None

    @property
    def instruction(self) -> Instruction:
        return instructions(self.code)[self.offset]

    @property
    def kinds(self) -> tuple[EntryKind, ...]:
        """What each entry of `stack` is."""
        return stack_kinds(self.code)[self.instruction.offset][: len(self.stack)]

    @property
    def exception_at_entry(self) -> BaseException | None:
        """The exception that was being handled when this frame was entered."""
        for kind, entry in zip(self.kinds, self.stack, strict=True):
            if kind is EntryKind.PREVIOUS_EXCEPTION:
                return entry
        return self.handled_exception

    @property
    def where(self) -> str:
        line = line_of(self.code, self.offset)
        return f"{self.code.co_filename}:{line} in {self.code.co_qualname}"


def line_of(code: CodeType, offset: int) -> int:
    positions = list(code.co_positions())
    return positions[offset // 2][0] or code.co_firstlineno


@dataclass(frozen=True, slots=True)
class Origin:
    """What a code object that resumes another one stands for."""

    code: CodeType
    offset: int  # where it enters `code`, or the instruction that it waits in
    depth: int  # the operand stack there
    shift: int  # bytes before the first instruction of `code`
    result_use: ResultUse | None  # None when it does not wait


# By id: code objects compare equal across files. Entries live as long as the cache of resuming
# code, which is for ever.
origins: dict[int, Origin] = {}


def capture(
    frame: FrameType,
    stack: tuple[Any, ...] | None = None,
    offset: int | None = None,
    handled_exception: BaseException | None = None,
) -> FrameState:
    """The state of `frame`, told in terms of the user's code even when a continuation runs it.

    For a frame that called another one, give the operand stack and the offset from before that
    instruction; by default both are read off the frame, which is right in the trace hook only.

    Raises ValueError inside the few instructions with which a continuation restores its state:
    there is nothing to capture yet.
    """
    state = FrameState(
        frame_function(frame),
        frame.f_code,
        frame.f_lasti if offset is None else offset,
        frame_locals(frame),
        frame_stack(frame) if stack is None else stack,
        handled_exception,
    )
    origin = origins.get(id(frame.f_code))
    return _in_users_terms(state, origin) if origin else state


def is_restoring(code: CodeType, offset: int) -> bool:
    """Whether the instruction at `offset` belongs to the continuation, not to the user's code."""
    origin = origins.get(id(code))
    return origin is not None and offset < origin.shift


def _in_users_terms(state: FrameState, origin: Origin) -> FrameState:
    pending, offset, stack = None, state.offset - origin.shift, state.stack
    if offset < 0:
        # [operands below, (NULL, complete,) NULL, the next frame]
        more = len(stack) - origin.depth
        if origin.result_use is None or state.instruction.name != "CALL" or more not in (2, 4):
            raise ValueError("a continuation that is still being restored has no state")
        pending = PendingInstruction(origin.result_use, stack[-3] if more == 4 else None)
        offset, stack = origin.offset, stack[: origin.depth]
    told = replace(
        state,
        function=state.function.__wrapped__,  # type: ignore[attr-defined]
        code=origin.code,
        offset=offset,
        locals=state.locals[:-1],
        stack=stack,
        pending=pending,
    )
    return replace(told, stack=move_places(told, -origin.shift))


def with_current_exceptions(state: FrameState) -> tuple[Any, ...]:
    """The stack with every exception that was handled *before* replaced by the one handled *then*:
    what a handler adds to the frame's state, and nothing of what lies outside of it."""
    stack, handled_exception = list(state.stack), state.handled_exception
    for place in reversed(range(len(stack))):
        if state.kinds[place] is EntryKind.PREVIOUS_EXCEPTION:
            stack[place], handled_exception = handled_exception, stack[place]
    return tuple(stack)


def with_previous_exceptions(state: FrameState, outside: BaseException | None) -> FrameState:
    """The inverse of :func:`with_current_exceptions`, for a frame entered while ``outside`` was
    handled."""
    stack, handled_exception = list(state.stack), outside
    for place, kind in enumerate(state.kinds):
        if kind is EntryKind.PREVIOUS_EXCEPTION:
            stack[place], handled_exception = handled_exception, stack[place]
    return replace(state, stack=tuple(stack), handled_exception=handled_exception)


def move_places(state: FrameState, distance: int) -> tuple[Any, ...]:
    """The stack after its code has moved: places of exceptions count in units of two bytes."""
    return tuple(
        max(entry + distance // 2, 0) if kind is EntryKind.LASTI else entry
        for kind, entry in zip(state.kinds, state.stack, strict=True)
    )


def pushed(state: FrameState, value: Any) -> FrameState:
    """The state after the instruction at which `state` is, had that given `value`.

    For instructions that take operands and push one result: calls, operators, subscripts,
    attributes, iterators with something left, imports.
    """
    at = state.instruction
    below = len(state.stack) + stack_effect(at) - 1
    results = (NULL, value) if pushes_two(at) else (value,)
    return replace(state, offset=at.end, stack=state.stack[: below + 1 - len(results)] + results)


def pushes_two(instruction: Instruction) -> bool:
    """Whether it loads an attribute in order to call it: pushes a method and its object, or an
    empty slot and any other attribute."""
    name, arg = instruction.name, instruction.arg
    if sys.version_info < (3, 12):
        return name == "LOAD_METHOD"
    return name in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and bool(arg & 1)


def is_resumable(state: FrameState, generator: bool = False) -> str | None:
    """Why the frame cannot be run on from this state; None when it can.

    ``generator``: that of a generator, as which it will be run on.
    """
    code = state.code
    if sys.version_info >= (3, 13):
        return "continuations are made for Python 3.11 and 3.12 only"
    asynchronous = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if code.co_flags & (asynchronous if generator else asynchronous | inspect.CO_GENERATOR):
        return f"{code.co_qualname} is a generator or coroutine: its object holds the frame"
    if not (code.co_flags & inspect.CO_OPTIMIZED and code.co_flags & inspect.CO_NEWLOCALS):
        return f"{code.co_qualname} is the body of a class or module: its locals are a dictionary"
    if not is_instance(state.function, FunctionType):
        return f"{code.co_qualname} was not entered through a Python function"
    kinds = stack_kinds(code).get(state.instruction.offset)
    if kinds is None:
        return f"nothing leads to offset {state.offset} of {code.co_qualname}"
    if state.pending is None and len(kinds) != len(state.stack):
        return (
            f"offset {state.offset} of {code.co_qualname} has {len(kinds)} operands, "
            f"not {len(state.stack)}"
        )
    if any(exception is None for exception in _handled_within(state)):
        return f"{code.co_qualname} is handling an exception that is not known"
    if len(state.locals) != slot_count(code):
        return f"{code.co_qualname} has {slot_count(code)} local slots, not {len(state.locals)}"
    return None


def has_handler(frames: Iterable[FrameState | FrameLayout]) -> bool:
    """Whether a handler, a ``finally`` or a ``with`` sees what the innermost frame raises."""
    return any(handler_of(f.code, instructions(f.code)[f.offset]) for f in frames)


def _handled_within(state: FrameState) -> list[BaseException | None]:
    """What each handler that the frame is in handles, outermost first."""
    before = [
        e
        for k, e in zip(state.kinds, state.stack, strict=True)
        if k is EntryKind.PREVIOUS_EXCEPTION
    ]
    return [*before[1:], state.handled_exception] if before else []

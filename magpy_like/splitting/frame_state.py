"""The state of an active frame, from which a continuation can run the rest of it.

A split leaves a chain of active frames (design, section 6): the innermost is about to execute an
instruction, every outer one is inside the instruction that called the next inner frame.
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
from magpy_like.bytecode.per_code_cache import PerCode
from magpy_like.bytecode.stack_entry_kinds import EntryKind, stack_kinds
from magpy_like.monitor.call_operands import with_null, without_null
from magpy_like.native import frame_function, frame_locals, frame_stack
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.splitting.frame_layout import FrameLayout


class ResultUse(Enum):
    """How a pending instruction uses the result of the inner frame."""

    PUSH = "it is pushed, the next instruction follows"
    DROP = "it is dropped, the next instruction follows"
    PUSH_UNBOUND = "it is pushed over an empty slot, as an attribute that will be called"
    TEST = "it replaces the operand, and the same instruction tests it"
    TEST_AND_KEEP = "it decides whether to jump with the operand or continue without it"
    ITERATE = "it is pushed; but StopIteration ends the loop"


@dataclass(frozen=True, slots=True)
class PendingInstruction:
    """The continuation of the instruction by which a frame has called another one.

    ``complete`` computes the instruction's result from the callee's; None if they are the same.
    """

    result_use: ResultUse
    complete: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class FrameState:
    """An active frame of ``function`` at an instruction of ``code``.

    Attributes:
        offset: of the instruction, in bytes.
        locals: the raw slots of ``frame_locals``: cells unopened, NULL where unbound.
        stack: the operand stack, bottom first, with NULL for empty entries. If an instruction is
            pending, only the entries below its operands.
        handled_exception: ``sys.exception()`` as this frame sees it.
        pending: the instruction that has called an inner frame, if one has.
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
        """The instruction at ``offset``."""
        return instructions(self.code)[self.offset]

    @property
    def kinds(self) -> tuple[EntryKind, ...]:
        """The kind of each entry of ``stack``."""
        return stack_kinds(self.code)[self.instruction.offset][: len(self.stack)]

    @property
    def exception_at_entry(self) -> BaseException | None:
        """The exception handled when this frame was entered."""
        for kind, entry in zip(self.kinds, self.stack, strict=True):
            if kind is EntryKind.PREVIOUS_EXCEPTION:
                return entry
        return self.handled_exception

    @property
    def where(self) -> str:
        """File, line and function, for messages."""
        line = line_of(self.code, self.offset)
        return f"{self.code.co_filename}:{line} in {self.code.co_qualname}"


def line_of(code: CodeType, offset: int) -> int:
    """The line of the instruction at ``offset``."""
    positions = list(code.co_positions())
    return positions[offset // 2][0] or code.co_firstlineno


@dataclass(frozen=True, slots=True)
class Origin:
    """The original code of a continuation's code object."""

    code: CodeType
    offset: int
    """The offset at which it enters ``code``, or the offset of its pending instruction."""
    depth: int
    """The depth of the operand stack at ``offset``."""
    shift: int
    """The size in bytes of the prefix before the first instruction of ``code``."""
    result_use: ResultUse | None
    """None without a pending instruction."""


origins: PerCode[Origin] = PerCode()
"""Origins by the continuation's code."""


def capture(
    frame: FrameType,
    stack: tuple[Any, ...] | None = None,
    offset: int | None = None,
    handled_exception: BaseException | None = None,
) -> FrameState:
    """The state of ``frame`` in terms of the program's code, also if a continuation runs it.

    Args:
        stack: the operand stack before the frame's instruction; by default the frame's own, which
            is correct in the trace hook only.
        offset: the instruction's offset; the default is correct in the trace hook only.

    Raises:
        ValueError: a continuation is still restoring the frame, so there is no state yet.
    """
    state = FrameState(
        frame_function(frame),
        frame.f_code,
        frame.f_lasti if offset is None else offset,
        frame_locals(frame),
        frame_stack(frame) if stack is None else stack,
        handled_exception,
    )
    origin = origins.get(frame.f_code)
    return _in_program_terms(state, origin) if origin else state


def is_restoring(code: CodeType, offset: int) -> bool:
    """True if the instruction at ``offset`` belongs to the prefix of a continuation."""
    origin = origins.get(code)
    return origin is not None and offset < origin.shift


def _in_program_terms(state: FrameState, origin: Origin) -> FrameState:
    pending, offset, stack = None, state.offset - origin.shift, state.stack
    if offset < 0:
        # [operands below, (the completion,) the next frame], each with NULL
        more = len(stack) - origin.depth
        if origin.result_use is None or state.instruction.name != "CALL" or more not in (2, 4):
            raise ValueError("a continuation that is still being restored has no state")
        complete = without_null(stack[-4:-2]) if more == 4 else None
        pending = PendingInstruction(origin.result_use, complete)
        offset, stack = origin.offset, stack[: origin.depth]
    translated = replace(
        state,
        function=state.function.__wrapped__,  # type: ignore[attr-defined]
        code=origin.code,
        offset=offset,
        locals=state.locals[:-1],
        stack=stack,
        pending=pending,
    )
    return replace(translated, stack=shift_offsets(translated, -origin.shift))


def with_current_exceptions(state: FrameState) -> tuple[Any, ...]:
    """The stack with the exception that each handler handles, in place of the previous exception.

    A handler pushes the exception handled before it, which belongs to the frame's caller for the
    outermost one. The result depends on the frame alone.
    """
    stack, handled_exception = list(state.stack), state.handled_exception
    for position in reversed(range(len(stack))):
        if state.kinds[position] is EntryKind.PREVIOUS_EXCEPTION:
            stack[position], handled_exception = handled_exception, stack[position]
    return tuple(stack)


def with_previous_exceptions(state: FrameState, outside: BaseException | None) -> FrameState:
    """The inverse of :func:`with_current_exceptions`, for a frame entered while ``outside`` was
    handled."""
    stack, handled_exception = list(state.stack), outside
    for position, kind in enumerate(state.kinds):
        if kind is EntryKind.PREVIOUS_EXCEPTION:
            stack[position], handled_exception = handled_exception, stack[position]
    return replace(state, stack=tuple(stack), handled_exception=handled_exception)


def shift_offsets(state: FrameState, distance: int) -> tuple[Any, ...]:
    """The stack after its code has moved by ``distance`` bytes: the offsets of instructions on it
    count in units of two bytes."""
    return tuple(
        max(entry + distance // 2, 0) if kind is EntryKind.LASTI else entry
        for kind, entry in zip(state.kinds, state.stack, strict=True)
    )


def push_result(state: FrameState, value: Any) -> FrameState:
    """The state after the frame's instruction, if its result is ``value``.

    For instructions that pop operands and push one result: calls, operators, subscripts,
    attributes, iterators that are not exhausted, imports.
    """
    at = state.instruction
    below = len(state.stack) + stack_effect(at) - 1
    results = with_null(value) if pushes_two_entries(at) else (value,)
    return replace(state, offset=at.end, stack=state.stack[: below + 1 - len(results)] + results)


def pushes_two_entries(instruction: Instruction) -> bool:
    """True for an instruction that loads an attribute in order to call it: it pushes a method and
    its object, or NULL and any other attribute."""
    name, arg = instruction.name, instruction.arg
    if sys.version_info < (3, 12):
        return name == "LOAD_METHOD"
    return name in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and bool(arg & 1)


def unresumable_reason(state: FrameState, generator: bool = False) -> str | None:
    """The reason why no continuation can start from this state; None if one can.

    Args:
        generator: whether the frame belongs to a generator and is resumed as one.
    """
    code = state.code
    asynchronous = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if code.co_flags & (asynchronous if generator else asynchronous | inspect.CO_GENERATOR):
        return f"{code.co_qualname} is a generator or coroutine: its object holds the frame"
    if not (code.co_flags & inspect.CO_OPTIMIZED and code.co_flags & inspect.CO_NEWLOCALS):
        return f"{code.co_qualname} is the body of a class or module: its locals are a dictionary"
    if not is_instance(state.function, FunctionType):
        return f"{code.co_qualname} was not entered through a Python function"
    kinds = stack_kinds(code).get(state.instruction.offset)
    if kinds is None:
        return f"offset {state.offset} of {code.co_qualname} is unreachable"
    if state.pending is None and len(kinds) != len(state.stack):
        return (
            f"offset {state.offset} of {code.co_qualname} has {len(kinds)} operands, "
            f"not {len(state.stack)}"
        )
    if any(exception is None for exception in _handled_within(state)):
        return f"{code.co_qualname} is handling an unknown exception"
    if len(state.locals) != slot_count(code):
        return f"{code.co_qualname} has {slot_count(code)} local slots, not {len(state.locals)}"
    return None


def has_handler(frames: Iterable[FrameState | FrameLayout]) -> bool:
    """True if a handler, ``finally`` or ``with`` covers the instruction of one of the frames."""
    return any(handler_of(f.code, instructions(f.code)[f.offset]) for f in frames)


def _handled_within(state: FrameState) -> list[BaseException | None]:
    """The exceptions handled by the handlers that the frame is in, outermost first."""
    before = [
        e
        for k, e in zip(state.kinds, state.stack, strict=True)
        if k is EntryKind.PREVIOUS_EXCEPTION
    ]
    return [*before[1:], state.handled_exception] if before else []

"""Suspended generators, captured and rebuilt.

A mock rebuilds a generator that the program had started, for example the generator of a ``with``
block around a split. Its code is the original code after a prefix, which restores locals and
operand stack and yields once, at an offset that the original's handlers cover. So the generator is
suspended at the same instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType, GeneratorType
from typing import Any

from magpy_like.bytecode.instruction_stream import instruction_list, instructions
from magpy_like.bytecode.stack_entry_kinds import EntryKind, stack_kinds
from magpy_like.native import frame_function, frame_locals, frame_operands
from magpy_like.splitting.continuation_functions import build_resumption, build_started_generator
from magpy_like.splitting.frame_layout import FrameLayout, build_frame, lay_out_frame
from magpy_like.splitting.frame_state import FrameState


def capture_generator(
    generator: GeneratorType[Any, Any, Any],
) -> tuple[FrameLayout | None, list[Any]]:
    """The layout and values from which :func:`rebuild_generator` creates an equal generator.

    The layout is None for a generator that has finished.

    Raises:
        ValueError: the generator cannot be rebuilt; the message states the reason.
    """
    frame = generator.gi_frame
    if frame is None:
        return None, []
    name = frame.f_code.co_qualname
    if generator.gi_running or generator.gi_yieldfrom is not None:
        raise ValueError(f"{name} is a generator that is running or delegates to another one")
    code, begin = frame.f_code, _begin(frame.f_code)
    offset = _yield_before(code, frame.f_lasti)
    started = offset > begin
    kinds = stack_kinds(code).get(offset, ()) if started else ()
    if EntryKind.PREVIOUS_EXCEPTION in kinds or EntryKind.LASTI in kinds:
        raise ValueError(f"{name} is a generator that is handling an exception")
    # The topmost operand was yielded and is no longer on the stack.
    stack = (*frame_operands(frame, len(kinds) - 1), None) if started else ()
    function = frame_function(frame)
    state = FrameState(function, code, offset if started else begin, frame_locals(frame), stack)
    values: list[Any] = []
    return lay_out_frame(state, values), values


def rebuild_generator(
    layout: FrameLayout | None, values: Sequence[Any]
) -> GeneratorType[Any, Any, Any]:
    """A generator that continues like the captured one."""
    if layout is None:
        return _finished()
    state = build_frame(layout, iter(values))
    if state.offset == _begin(layout.code):
        return build_resumption(state)()
    generator: GeneratorType[Any, Any, Any] = build_started_generator(state)()
    next(generator)
    return generator


def _begin(code: CodeType) -> int:
    """The offset of the first instruction that a generator runs at its first ``next``."""
    return next(at.end for at in instruction_list(code) if at.name == "RESUME")


def _yield_before(code: CodeType, offset: int) -> int:
    """The offset of the YIELD_VALUE at which a generator is suspended. From Python 3.13 on the
    frame is already at the instruction after it."""
    table = instructions(code)
    is_after = offset > 0 and table[offset - 2].name == "YIELD_VALUE"
    return table[offset - 2].offset if is_after else offset


def _finished() -> GeneratorType[Any, Any, Any]:
    generator = _nothing()
    next(generator, None)
    return generator


def _nothing() -> Any:
    return
    yield

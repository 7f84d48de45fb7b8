"""The code objects of continuations: a frame's own code after a prefix that restores its state.

The body stays as it is, byte for byte, with the same slots, constants, names and line numbers:
jumps are relative, so only the exception table moves. The prefix takes the state from one extra
free variable, fills slots and operand stack, and jumps to the instruction.
"""

from __future__ import annotations

import dis
import inspect
import opcode
import sys
import weakref
from collections import deque
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from magpy_like.bytecode.exception_table import (
    Handler,
    encode_exception_table,
    exception_table,
    handler_of,
)
from magpy_like.bytecode.instruction_stream import (
    Instruction,
    entry_offset,
    instruction_list,
    instructions,
    stack_effect,
)
from magpy_like.bytecode.live_locals import slot_count
from magpy_like.bytecode.per_code_cache import PerCode
from magpy_like.bytecode.stack_entry_kinds import EntryKind, stack_kinds
from magpy_like.monitor.call_operands import NULL_IS_BELOW
from magpy_like.native.instance_checks import is_instance
from magpy_like.splitting.frame_state import Origin, ResultUse, origins
from magpy_like.splitting.prefix_line_table import prefix_locations

_CACHES: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]
"""The number of inline caches by opcode, or by name (3.13)."""
_STATE = ".state"
"""The extra free variable; no variable of a program can have this name."""
_IF_FALSE = next(n for n in ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE") if n in dis.opmap)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a prefix, which runs after it has restored the frame."""

    name: str
    """A key of ``_ENDINGS``."""
    result_use: ResultUse | None = None
    """How a pending instruction uses the result of the inner frame."""
    completes: bool = False
    """Whether the result is passed to a completion first."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The key of a continuation's code: the frame's state without its values."""

    offset: int
    depth: int
    """The depth of the frame's own operand stack."""
    size: int
    """The depth with the operands that the ending needs."""
    bound: tuple[int, ...]
    """The slots that receive a value."""
    unbound: tuple[int, ...]
    """The argument slots that must be unbound."""
    empty: tuple[int, ...]
    """The positions on the operand stack that hold NULL."""
    ending: Ending


_codes: PerCode[dict[Shape, weakref.ref[CodeType]]] = PerCode()
"""By the frame's code, which the continuation's code keeps alive (:data:`origins`)."""
_recent: deque[CodeType] = deque(maxlen=256)
"""Keeps code that is likely to be needed again, such as that of a loop's isolated iterations."""


def build_code(code: CodeType, shape: Shape) -> CodeType:
    """The code that resumes a frame of ``code``; cached."""
    of_code = _codes.get(code)
    if of_code is None:
        _codes[code] = of_code = {}
    known = of_code.get(shape)
    resumed = None if known is None else known()
    if resumed is None:
        resumed = _assemble(code, shape)
        of_code[shape] = weakref.ref(resumed)
        _recent.append(resumed)
    return resumed


@dataclass(slots=True)
class _Prefix:
    """The instructions before the body, and their rows in the exception table."""

    raw: bytes = b""
    rows: list[Handler] = field(default_factory=list)

    def add(self, name: str, arg: int = 0) -> None:
        self.raw += _encode(name, arg)

    def cover(self, start: int, target: int, depth: int) -> None:
        """Add a row: exceptions from ``start`` up to here go to ``target`` in the prefix."""
        self.rows.append(Handler(start, len(self.raw), target, depth, False))


def _encode(name: str, arg: int = 0) -> bytes:
    """An instruction with its EXTENDED_ARGs and inline caches."""
    prefixes = b"".join(
        bytes((dis.EXTENDED_ARG, arg >> shift & 255)) for shift in (24, 16, 8) if arg >> shift
    )
    number = dis.opmap[name]
    caches = _CACHES.get(name, 0) if is_instance(_CACHES, dict) else _CACHES[number]
    return prefixes + bytes((number, arg & 255)) + bytes(2 * caches)


def _encode_call(arguments: int) -> bytes:
    before = _encode("PRECALL", arguments) if "PRECALL" in dis.opmap else b""
    return before + _encode("CALL", arguments)


_BEFORE_CALL = _encode("NOP") if sys.version_info >= (3, 13) else b""
"""For an exception of a Python function, 3.13 searches the handler of the unit before the call."""
_SPACER = _encode("NOP")
"""Between prefix and body; never executed."""


def _assemble(code: CodeType, shape: Shape) -> CodeType:
    """The prefix and the body."""
    at = instructions(code)[shape.offset]
    prefix = _Prefix()
    _restore(prefix, code, shape)
    begin = len(prefix.raw)
    _ENDINGS[shape.ending.name](prefix, code, shape, at)
    prefix.raw += _SPACER
    shift = len(prefix.raw)

    rows = prefix.rows
    if (covered := handler_of(code, at)) and shape.ending.name in ("raise", "call", "yield"):
        rows += _rest(begin, shift, rows, covered, shift)
    rows = sorted(rows, key=lambda row: row.start) + [
        Handler(row.start + shift, row.end + shift, row.target + shift, row.depth, row.lasti)
        for row in exception_table(code)
    ]
    position = list(code.co_positions())[at.at // 2]
    lines = prefix_locations(shift // 2, position, code.co_firstlineno)
    resumed = code.replace(
        co_code=prefix.raw + _body(code),
        co_consts=(*code.co_consts, StopIteration),
        co_freevars=(*code.co_freevars, _STATE),
        co_stacksize=max(code.co_stacksize, len(shape.bound) + shape.size) + 4,
        co_exceptiontable=encode_exception_table(rows),
        co_linetable=lines + code.co_linetable,
    )
    origins[resumed] = Origin(code, shape.offset, shape.depth, shift, shape.ending.result_use)
    return resumed


def _rest(
    begin: int, end: int, taken: list[Handler], covered: Handler, shift: int
) -> list[Handler]:
    """Rows to the body's handler for the parts of the prefix without a handler of their own."""
    out = []
    for row in [*taken, Handler(end, end, 0, 0, False)]:
        if begin < row.start:
            target = covered.target + shift
            out.append(Handler(begin, row.start, target, covered.depth, covered.lasti))
        begin = row.end
    return out


def _body(code: CodeType) -> bytes:
    """The frame's code without COPY_FREE_VARS: the prefix has set up all free variables, and one
    that the body does not have."""
    raw = bytearray(code.co_code)
    for at in instructions(code).values():
        if at.name == "COPY_FREE_VARS":
            raw[at.offset : at.end] = _SPACER * ((at.end - at.offset) // 2)
    return bytes(raw)


def _restore(prefix: _Prefix, code: CodeType, shape: Shape) -> None:
    """Restore locals and operand stack from the tuple in the extra free variable; delete it."""
    state = slot_count(code)
    # Not executed: to find the frame's locals, CPython looks for a MAKE_CELL before the current
    # instruction. It comes before RESUME, where tracing does not rewrite it (3.12).
    makes = b"".join(_encode("MAKE_CELL", slot) for slot in _cell_slots(code))
    prefix.add("JUMP_FORWARD", len(makes) // 2)
    prefix.raw += makes
    prefix.add("COPY_FREE_VARS", len(code.co_freevars) + 1)
    if code.co_flags & inspect.CO_GENERATOR:
        prefix.add("RETURN_GENERATOR")
        prefix.add("POP_TOP")
    prefix.add("RESUME")
    prefix.add("LOAD_DEREF", state)
    prefix.add("DELETE_DEREF", state)
    prefix.add("UNPACK_SEQUENCE", len(shape.bound) + shape.size)
    # The slot of a cell receives the cell itself: the body's MAKE_CELL has run before.
    for slot in shape.bound:
        prefix.add("STORE_FAST", slot)
    for slot in shape.unbound:
        prefix.add("DELETE_FAST", slot)
    for position in shape.empty:
        prefix.add("PUSH_NULL")
        prefix.add("SWAP", shape.size - position + 1)
        prefix.add("POP_TOP")
    if shape.ending.name == "execute":
        return
    for position, kind in enumerate(stack_kinds(code)[shape.offset][: shape.depth]):
        if kind is EntryKind.PREVIOUS_EXCEPTION:
            prefix.add("COPY", shape.size - position)
            prefix.add("PUSH_EXC_INFO")
            prefix.add("POP_TOP")
            prefix.add("SWAP", shape.size - position + 1)
            prefix.add("POP_TOP")


def _cell_slots(code: CodeType) -> list[int]:
    return [at.arg for at in instruction_list(code) if at.name == "MAKE_CELL"]


def _end_resume(prefix: _Prefix, code: CodeType, shape: Shape, at: Instruction) -> None:
    prefix.raw += _jump(entry_offset(code, at.offset))


def _jump(target: int, between: int = 0) -> bytes:
    """A jump into the body over ``between`` bytes of the prefix and the spacer."""
    return _encode("JUMP_FORWARD", (between + len(_SPACER) + target) // 2)


# [previous exception, the exception]: leaves the handler, with the exception.
_RAISE_ON = _encode("SWAP", 2) + _encode("POP_EXCEPT") + _encode("RERAISE")


def _end_raise(prefix: _Prefix, code: CodeType, shape: Shape, at: Instruction) -> None:
    # Raising sets __context__ to the handled exception, unless that is the exception itself: so the
    # prefix handles it meanwhile. RERAISE does neither, and does not extend the traceback.
    prefix.add("PUSH_EXC_INFO")
    start = len(prefix.raw)
    prefix.add("RAISE_VARARGS", 1)
    prefix.cover(start, len(prefix.raw), shape.depth + 1)
    prefix.raw += _RAISE_ON


def _end_call(prefix: _Prefix, code: CodeType, shape: Shape, at: Instruction) -> None:
    start = len(prefix.raw)
    prefix.raw += _BEFORE_CALL + _encode_call(0)
    called = len(prefix.raw)
    if shape.ending.completes:
        prefix.raw += _encode_call(1)
    match shape.ending.result_use:
        case ResultUse.TEST:
            prefix.raw += _jump(at.offset)
            return
        case ResultUse.TEST_AND_KEEP:
            _test_and_keep(prefix, at)
            return
        case ResultUse.ITERATE:
            _iterate(prefix, code, shape, at, start, called)
            return
        case ResultUse.DROP:
            prefix.add("POP_TOP")
        case ResultUse.PUSH_UNBOUND:
            prefix.add("PUSH_NULL")
            if NULL_IS_BELOW:
                prefix.add("SWAP", 2)
        case _:
            pass
    prefix.raw += _jump(at.end)


def _test_and_keep(prefix: _Prefix, at: Instruction) -> None:
    """Jump by the topmost of [operand, bool]; the operand stays where the jump is taken."""
    leave = _encode("POP_TOP") + _jump(at.end)
    assert at.target is not None
    if "IF_TRUE" in at.name:
        taken = _jump(at.target, between=len(leave))
        prefix.add(_IF_FALSE, len(taken) // 2)
        prefix.raw += taken + leave
    else:
        taken = _jump(at.target)
        leave = _encode("POP_TOP") + _jump(at.end, between=len(taken))
        prefix.add(_IF_FALSE, len(leave) // 2)
        prefix.raw += leave + taken


def _iterate(
    prefix: _Prefix, code: CodeType, shape: Shape, at: Instruction, start: int, called: int
) -> None:
    """Continue with the element that the call between ``start`` and ``called`` has returned, or
    leave the loop if the call has raised StopIteration."""
    exhausted = _jump(at.exhaustion_target, between=len(_RAISE_ON))
    leave = _encode("POP_TOP") + _encode("POP_EXCEPT") + _encode("POP_TOP") + exhausted
    handler = (
        _encode("PUSH_EXC_INFO")
        + _encode("LOAD_CONST", len(code.co_consts))  # StopIteration
        + _encode("CHECK_EXC_MATCH")
        + _encode(_IF_FALSE, len(leave) // 2)
        + leave
        + _RAISE_ON
    )
    after = _jump(at.end, between=len(handler))
    prefix.rows.append(Handler(start, called, len(prefix.raw + after), shape.depth, False))
    prefix.raw += after + handler


def _end_yield(prefix: _Prefix, code: CodeType, shape: Shape, at: Instruction) -> None:
    prefix.raw += code.co_code[at.offset : at.end]
    prefix.raw += _jump(at.end)


def _end_execute(prefix: _Prefix, code: CodeType, shape: Shape, at: Instruction) -> None:
    prefix.raw += code.co_code[entry_offset(code, at.offset) : at.end]
    prefix.add("BUILD_TUPLE", shape.depth + stack_effect(at))
    prefix.add("RETURN_VALUE")


_ENDINGS = {
    "resume": _end_resume,
    "raise": _end_raise,
    "call": _end_call,
    "yield": _end_yield,
    "execute": _end_execute,
}

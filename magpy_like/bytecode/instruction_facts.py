"""Other facts about instructions: resumption, cleanup in generators, in-place reads, operands."""

from __future__ import annotations

import dis
import opcode
import types
from typing import NamedTuple

from magpy_like.bytecode.instruction_stream import (
    Instruction,
    entry_offset,
    instructions,
    parts_of,
)
from magpy_like.bytecode.per_code_cache import per_code

CALLS = ("CALL", "CALL_KW")
"""The calls with their arguments on the stack; above them, CALL_KW (3.13) has keyword names."""

_READS = {"LOAD_ATTR", "LOAD_GLOBAL", "LOAD_DEREF", "BINARY_SUBSCR"}
_FIRST_IN_PLACE = next(i for i, (name, _) in enumerate(opcode._nb_ops) if "INPLACE" in name)  # type: ignore[attr-defined]


def current_opname(frame: types.FrameType) -> str:
    """The name of the instruction that a frame is executing."""
    return opcode.opname[frame.f_code.co_code[current_offset(frame)]]


def current_offset(frame: types.FrameType) -> int:
    """The offset of the instruction that a frame is executing."""
    code, offset = frame.f_code.co_code, frame.f_lasti
    while opcode.opname[code[offset]] == "CACHE":  # it has entered a Python function without C code
        offset -= 2
    return offset


@per_code
def resume_offset(code: types.CodeType) -> int:
    """The offset of the RESUME at which the body of a function begins."""
    return next(i.offset for i in dis.get_instructions(code) if i.opname == "RESUME")


def runs_cleanup(code: types.CodeType, offset: int) -> bool:
    """True if code of the program runs when a generator suspended at ``offset`` is closed."""
    for row in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        if row.start <= offset < row.end:
            # In Python 3.12 a handler covers every generator, but it only converts StopIteration.
            return opcode.opname[code.co_code[row.target]] != "CALL_INTRINSIC_1"
    return False


def in_place_reads(code: types.CodeType) -> set[int]:
    """The offsets of the reads whose value is the left operand of an in-place operator."""
    found: set[int] = set()
    recent: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name == "BINARY_OP" and (instruction.arg or 0) >= _FIRST_IN_PLACE and len(recent) >= 2:
            last = recent[-1]
            loads_one = last.opname.startswith("LOAD_") and len(parts_of(last.opname, 0)) == 1
            if loads_one and recent[-2].opname in _READS:
                found.add(recent[-2].offset)
        if name not in ("CACHE", "EXTENDED_ARG"):
            recent = [*recent[-1:], instruction]
    return found


def operand_count(name: str, arg: int) -> int:
    """The number of operands of a call: the callable, the object of a method or NULL, arguments."""
    if name == "CALL_FUNCTION_EX":
        return 3 + (arg & 1)
    return arg + (3 if name == "CALL_KW" else 2)


def keyword_names(code: types.CodeType, call: Instruction) -> tuple[str, ...]:
    """The names of the keyword arguments of a call."""
    table = instructions(code)
    if call.name == "CALL_KW":
        before = table[call.offset - 2]
    else:
        before = table[entry_offset(code, call.offset)]
        if before.name != "KW_NAMES":
            return ()
    names: tuple[str, ...] = code.co_consts[before.arg]
    return names


FORMATS = ("FORMAT_VALUE", "CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC")
"""The instructions of an f-string's fields."""


class Formatting(NamedTuple):
    """What an instruction of an f-string's field does with its operand."""

    conversion: int
    """0, or that to ``str`` (1), ``repr`` (2) or ``ascii`` (3)."""
    is_specified: bool
    """Whether a format specification is on top of the stack."""


def formatting(name: str, arg: int) -> Formatting | None:
    """The formatting by an instruction; None for an instruction that formats nothing.

    Up to Python 3.12 one instruction converts and formats.
    """
    match name:
        case "FORMAT_VALUE":
            return Formatting(arg & 3, bool(arg & 4))
        case "CONVERT_VALUE":
            return Formatting(arg, False)
        case "FORMAT_SIMPLE" | "FORMAT_WITH_SPEC":
            return Formatting(0, name == "FORMAT_WITH_SPEC")
    return None

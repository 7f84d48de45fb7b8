"""Other facts about instructions: resumption, cleanup in generators, in-place reads, keywords."""

from __future__ import annotations

import dis
import opcode
import types

from magpy_like.bytecode.per_code_cache import per_code

_READS = {"LOAD_ATTR", "LOAD_GLOBAL", "LOAD_DEREF", "BINARY_SUBSCR"}
_FIRST_IN_PLACE = next(i for i, (name, _) in enumerate(opcode._nb_ops) if "INPLACE" in name)  # type: ignore[attr-defined]


def current_opname(frame: types.FrameType) -> str:
    """The name of the instruction that a frame is executing."""
    code, offset = frame.f_code.co_code, frame.f_lasti
    while opcode.opname[code[offset]] == "CACHE":  # it has entered a Python function without C code
        offset -= 2
    return opcode.opname[code[offset]]


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
            if recent[-1].opname.startswith("LOAD_") and recent[-2].opname in _READS:
                found.add(recent[-2].offset)
        if name not in ("CACHE", "EXTENDED_ARG"):
            recent = [*recent[-1:], instruction]
    return found


def keyword_names(code: types.CodeType) -> dict[int, tuple[str, ...]]:
    """The keyword names of calls, by the offset with which the monitor reports the call."""
    found: dict[int, tuple[str, ...]] = {}
    names: tuple[str, ...] = ()
    start: int | None = None
    for instruction in dis.get_instructions(code):
        offset = instruction.offset
        if instruction.opname == "EXTENDED_ARG":
            start = offset if start is None else start
            continue
        if instruction.opname == "KW_NAMES":
            names = code.co_consts[instruction.arg or 0]
        elif instruction.opname == "CALL":
            if names:
                found[offset if start is None else start] = names
            names = ()
        start = None
    return found

"""The instructions of a code object, with their offsets, jump targets and stack effects."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from types import CodeType

from magpy_like.bytecode.per_code_cache import per_code


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. Offsets are in bytes, like ``frame.f_lasti``."""

    name: str
    arg: int
    offset: int
    """The offset of its first EXTENDED_ARG, if it has one: the target of jumps to it."""
    at: int
    """The offset of the operation itself, as in the exception table."""
    end: int
    """The offset after its inline caches, at which the next instruction starts."""

    @property
    def target(self) -> int | None:
        """The offset to which it may jump; None if it never jumps."""
        if dis.opmap[self.name] not in dis.hasjrel:
            return None
        distance = 2 * self.arg
        return self.end - distance if "BACKWARD" in self.name else self.end + distance

    @property
    def falls_through(self) -> bool:
        """True if the next instruction may follow."""
        return self.name not in _NEVER_FALLS_THROUGH

    @property
    def exhaustion_target(self) -> int:
        """The offset at which FOR_ITER continues when its iterator is exhausted and popped."""
        assert self.target is not None
        return self.target + 2 * _EXHAUSTION_SKIPS


_EXHAUSTION_SKIPS = {None: 0, -2: 1, -1: 2}[
    dis.stack_effect(dis.opmap["END_FOR"]) if "END_FOR" in dis.opmap else None
]
"""The number of instructions over which an exhausted FOR_ITER jumps: they pop the iterator and a
placeholder, by END_FOR (3.12), or by END_FOR and POP_TOP (3.13)."""

_NEVER_FALLS_THROUGH = frozenset(
    (
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
    )
)


@per_code
def instructions(code: CodeType) -> dict[int, Instruction]:
    """The instructions by the offset of each of their parts, EXTENDED_ARG and caches included."""
    raw = code.co_code
    out: dict[int, Instruction] = {}
    position = 0
    while position < len(raw):
        offset, arg = position, raw[position + 1]
        while raw[position] == dis.EXTENDED_ARG:
            position += 2
            arg = arg << 8 | raw[position + 1]
        at, end = position, position + 2
        while end < len(raw) and raw[end] == 0:  # CACHE
            end += 2
        instruction = Instruction(dis.opname[raw[at]], arg, offset, at, end)
        out.update(dict.fromkeys(range(offset, end, 2), instruction))
        position = end
    return out


def instruction_list(code: CodeType) -> list[Instruction]:
    """The instructions in order."""
    return list(dict.fromkeys(instructions(code).values()))


_FUSED = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""Instructions that access two locals (3.13): the instructions that do one after the other."""


def parts_of(name: str, arg: int) -> tuple[tuple[str, int], ...]:
    """The names and arguments of the instructions that an instruction stands for, in order."""
    if name in _FUSED:
        first, second = _FUSED[name]
        return (first, arg >> 4), (second, arg & 15)
    return ((name, arg),)


def stack_effect(instruction: Instruction, jump: bool = False) -> int:
    """The change of the operand stack's depth.

    `dis.stack_effect` attributes the pops of CALL to PRECALL (3.11).
    """
    if instruction.name == "PRECALL":
        return 0
    if instruction.name == "CALL":
        return -(instruction.arg + 1)
    opcode = dis.opmap[instruction.name]
    arg = instruction.arg if opcode >= dis.HAVE_ARGUMENT else None
    return dis.stack_effect(opcode, arg, jump=jump)


def entry_offset(code: CodeType, offset: int) -> int:
    """The offset at which execution may start in order to run the instruction at ``offset``.

    That is its first EXTENDED_ARG. For a call with keywords it is the KW_NAMES before it, which
    passes the names to the call through a variable of the interpreter.
    """
    table = instructions(code)
    entry = table[offset]
    while entry.name in ("CALL", "PRECALL") and entry.offset:
        before = table[entry.offset - 2]
        if before.name not in ("PRECALL", "KW_NAMES"):
            break
        entry = before
    return entry.offset if entry.name == "KW_NAMES" else table[offset].offset

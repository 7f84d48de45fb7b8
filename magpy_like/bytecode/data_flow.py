"""What the bytecode of a function says about each of its instructions: where it starts and ends,
what lies on the operand stack there, which locals are still wanted, which handler covers it.

Plain data-flow over `co_code` and the exception table, for Python 3.11 and 3.12. Results are kept
for each code object for as long as the process lives: whoever asks will resume that code again.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType
from typing import TypeVar

from magpy_like.bytecode.local_uses import FRAME_INSPECTORS

T = TypeVar("T")


def per_code(compute: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Remember `compute`'s answer for each code *object*.

    Code objects that compare equal may come from different files, so `functools.cache` is not
    good enough.
    """
    known: dict[int, tuple[CodeType, T]] = {}

    @functools.wraps(compute)
    def look_up(code: CodeType) -> T:
        found = known.get(id(code))
        if found is None:
            found = known[id(code)] = (code, compute(code))
        return found[1]

    return look_up


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; offsets are in bytes, as `frame.f_lasti` counts."""

    name: str
    arg: int
    offset: int  # of its first EXTENDED_ARG, if it has one: where a jump to it lands
    at: int  # of the operation itself: where the exception table looks
    end: int  # past its inline caches: where the next one starts

    @property
    def target(self) -> int | None:
        """Where it may jump to."""
        if dis.opmap[self.name] not in dis.hasjrel:
            return None
        distance = 2 * self.arg
        return self.end - distance if "BACKWARD" in self.name else self.end + distance

    @property
    def falls_through(self) -> bool:
        return self.name not in _NEVER_FALLS_THROUGH

    @property
    def exhaustion_target(self) -> int:
        """Where FOR_ITER goes when its iterator has nothing more, which it pops."""
        assert self.target is not None
        return self.target + (2 if "END_FOR" in dis.opmap else 0)  # 3.12 skips the END_FOR


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
    """The instructions by the offset of each of their parts, prefixes and caches included."""
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
    return list(dict.fromkeys(instructions(code).values()))


@dataclass(frozen=True, slots=True)
class Handler:
    """One row of the exception table: bytes `start` to `end` are covered by `target`."""

    start: int
    end: int
    target: int
    depth: int  # how much of the operand stack is kept
    lasti: bool  # whether the place of the exception is pushed before the exception


@per_code
def exception_table(code: CodeType) -> tuple[Handler, ...]:
    return tuple(_parse(code.co_exceptiontable))


def _parse(table: bytes) -> Iterator[Handler]:
    # CPython, Objects/exception_handling_notes.txt: big-endian groups of 6 bits, bit 6 continues,
    # bit 7 marks a new row. Units of two bytes.
    rest = iter(table)

    def number(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(rest)
            value = value << 6 | first & 63
        return value

    for byte in rest:
        start, length, target, depth = (
            number(byte),
            number(next(rest)),
            number(next(rest)),
            number(next(rest)),
        )
        yield Handler(2 * start, 2 * (start + length), 2 * target, depth >> 1, bool(depth & 1))


def encode_exception_table(handlers: list[Handler]) -> bytes:
    """The table of these rows, which must be in order of `start` and must not overlap."""

    def number(value: int, mark: int = 0) -> bytes:
        groups = [value & 63]
        while value := value >> 6:
            groups.append(value & 63 | 64)
        groups[-1] |= mark
        return bytes(reversed(groups))

    return b"".join(
        number(h.start // 2, mark=128)
        + number((h.end - h.start) // 2)
        + number(h.target // 2)
        + number(h.depth << 1 | h.lasti)
        for h in handlers
    )


def handler_of(code: CodeType, instruction: Instruction) -> Handler | None:
    """The row that says where an exception raised by this instruction goes."""
    for row in exception_table(code):
        if row.start <= instruction.at < row.end:
            return row
    return None


class EntryKind(Enum):
    """What an entry of the operand stack is."""

    VALUE = "value"
    LASTI = "place of an exception"
    PREVIOUS_EXCEPTION = "the exception that was being handled before"


EntryKinds = tuple[EntryKind, ...]


@per_code
def stack_kinds(code: CodeType) -> dict[int, EntryKinds]:
    """The operand stack before each reachable instruction, by the instruction's offset."""
    table = instructions(code)
    out: dict[int, EntryKinds] = {}
    todo: list[tuple[int, EntryKinds]] = [(0, ())]
    while todo:
        offset, kinds = todo.pop()
        if offset in out:
            continue
        out[offset] = kinds
        instruction = table[offset]
        if instruction.falls_through and instruction.end in table:
            todo.append((instruction.end, _after(instruction, kinds, jump=False)))
        if (target := instruction.target) is not None:
            todo.append((target, _after(instruction, kinds, jump=True)))
        # PUSH_EXC_INFO cannot raise, and is covered by the row for what it has not set up yet.
        handler = handler_of(code, instruction)
        if handler and instruction.name != "PUSH_EXC_INFO":
            pushed = (EntryKind.LASTI, EntryKind.VALUE) if handler.lasti else (EntryKind.VALUE,)
            todo.append((handler.target, kinds[: handler.depth] + pushed))
    return out


def _after(instruction: Instruction, kinds: EntryKinds, jump: bool) -> EntryKinds:
    match instruction.name:
        case "PUSH_EXC_INFO":
            return (*kinds[:-1], EntryKind.PREVIOUS_EXCEPTION, EntryKind.VALUE)
        case "SWAP":
            swapped = list(kinds)
            swapped[-1], swapped[-instruction.arg] = swapped[-instruction.arg], swapped[-1]
            return tuple(swapped)
        case "COPY":
            # POP_EXCEPT takes the copy, and with it the handler ends.
            copied = list(kinds)
            if (kind := kinds[-instruction.arg]) is EntryKind.PREVIOUS_EXCEPTION:
                copied[-instruction.arg] = EntryKind.VALUE
            return (*copied, kind)
        case _:
            effect = stack_effect(instruction, jump)
            if effect >= 0:
                return kinds + (EntryKind.VALUE,) * effect
            return kinds[:effect]


def stack_effect(instruction: Instruction, jump: bool = False) -> int:
    """How much deeper the operand stack is afterwards.

    `dis.stack_effect` lets PRECALL (3.11) pop the arguments, but CALL does.
    """
    if instruction.name == "PRECALL":
        return 0
    if instruction.name == "CALL":
        return -(instruction.arg + 1)
    opcode = dis.opmap[instruction.name]
    arg = instruction.arg if opcode >= dis.HAVE_ARGUMENT else None
    return dis.stack_effect(opcode, arg, jump=jump)


# What reads a slot, or the cell in it, before anything is written to it.
_READS = frozenset(
    (
        "LOAD_FAST",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
        "DELETE_FAST",
        "LOAD_CLOSURE",
        "LOAD_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "MAKE_CELL",
    )
)
_WRITES = frozenset(("STORE_FAST", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"))


def slot_count(code: CodeType) -> int:
    """Locals, cells and free variables: the length of `frame_locals`."""
    cells = set(code.co_cellvars) - set(code.co_varnames)
    return code.co_nlocals + len(cells) + len(code.co_freevars)


@per_code
def _live(code: CodeType) -> dict[int, int]:
    """Bit sets of the live slots before each reachable instruction."""
    reachable = [i for i in instruction_list(code) if i.offset in stack_kinds(code)]
    always = 0
    if FRAME_INSPECTORS & {*code.co_names}:
        always = (1 << slot_count(code)) - 1
    elif "__class__" in code.co_freevars:  # super() finds both in the frame
        always = 1 | 1 << (slot_count(code) - len(code.co_freevars)) + code.co_freevars.index(
            "__class__"
        )
    live = {i.offset: always for i in reachable}
    changed = True
    while changed:
        changed = False
        for i in reversed(reachable):
            out = 0
            if i.falls_through:
                out |= live.get(i.end, 0)
            if i.target is not None:
                out |= live[i.target]
            bit = 1 << i.arg
            if i.name in _WRITES:
                out &= ~bit
            if i.name in _READS:
                out |= bit
            if handler := handler_of(code, i):
                # It may have raised before it wrote.
                out |= live[handler.target]
            out |= always
            if out != live[i.offset]:
                live[i.offset], changed = out, True
    return live


def live_locals(code: CodeType, offset: int) -> frozenset[int]:
    """The slots of `frame_locals` that may be read before they are written, from `offset` on.

    A cell counts as live where an instruction of this frame still opens it or hands it to a
    closure; closures that already hold it keep it by themselves. In a function that mentions
    `locals`, `eval` or the like, all slots are live. A caller that drops a dead slot lets go of its
    value earlier than the program would.
    """
    bits = _live(code).get(instructions(code)[offset].offset, 0)
    return frozenset(slot for slot in range(slot_count(code)) if bits >> slot & 1)


def entry_offset(code: CodeType, offset: int) -> int:
    """The offset from which the instruction at `offset` can be entered.

    Its first EXTENDED_ARG, and for a call with keywords the KW_NAMES before it, which tells the
    call its names through a variable of the interpreter.
    """
    table = instructions(code)
    entry = table[offset]
    while entry.name in ("CALL", "PRECALL") and entry.offset:
        before = table[entry.offset - 2]
        if before.name not in ("PRECALL", "KW_NAMES"):
            break
        entry = before
    return entry.offset if entry.name == "KW_NAMES" else table[offset].offset

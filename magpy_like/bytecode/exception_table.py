"""The exception table of a code object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from magpy_like.bytecode.instruction_stream import Instruction
from magpy_like.bytecode.per_code_cache import per_code


@dataclass(frozen=True, slots=True)
class Handler:
    """One row of the exception table: exceptions in bytes ``start`` to ``end`` go to ``target``."""

    start: int
    end: int
    target: int
    depth: int
    """Number of operands that stay on the stack."""
    lasti: bool
    """Whether the offset of the raising instruction is pushed before the exception."""


@per_code
def exception_table(code: CodeType) -> tuple[Handler, ...]:
    """The rows of the exception table, in order."""
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
    """Encode rows, which must be in order of ``start`` and must not overlap."""

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
    """The row for exceptions that an instruction raises; None if no handler covers it."""
    for row in exception_table(code):
        if row.start <= instruction.at < row.end:
            return row
    return None

"""Line table entries of the prefix that a continuation's code starts with."""

from __future__ import annotations

Position = tuple[int | None, int | None, int | None, int | None]
"""Line, end line, column and end column, as ``co_positions`` yields them."""


def prefix_locations(units: int, position: Position, first_line: int) -> bytes:
    """Line table entries that give ``units`` instructions one source position.

    Lines are encoded as differences between entries, starting from the function's first line
    (CPython, Objects/locations.md). So the last unit, the spacer, reverts the difference.
    """
    line, end_line, column, end_column = position
    entries = bytearray()
    if line is None:
        for done in range(0, units, 8):
            entries.append(_first_byte(15, min(8, units - done)))
        return bytes(entries)
    difference = line - first_line
    for done in range(0, units - 1, 8):
        count = min(8, units - 1 - done)
        if column is None or end_column is None or end_line is None:
            entries.append(_first_byte(13, count))
            entries += _signed(difference)
        else:
            entries.append(_first_byte(14, count))
            entries += _signed(difference)
            entries += _number(end_line - line) + _number(column + 1) + _number(end_column + 1)
        difference = 0
    entries.append(_first_byte(13, 1))
    entries += _signed(first_line - line)
    return bytes(entries)


def _first_byte(form: int, units: int) -> int:
    return 128 | form << 3 | units - 1


def _signed(value: int) -> bytes:
    return _number(-value << 1 | 1 if value < 0 else value << 1)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 63:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)
    return bytes(out)

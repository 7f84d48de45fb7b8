"""Points of a call, and the choice of those that are tried.

A point is a check of the interpreter for signals and sent exceptions: where a function is entered,
after a call, at a jump backwards; all other instructions run between two checks. A call passes
hundreds of thousands, most of them at the same instructions, and most within own work, where an
interruption waits for the next safe point. :func:`representatives` chooses from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Place(NamedTuple):
    """An instruction: the file, name and first line of its code object, and its offset there."""

    file: str
    function: str
    line: int
    offset: int


class Point(NamedTuple):
    """A point of a call: its instruction, how often that was passed before, and the safe point.

    ``safe_point`` is the number of the next one within own work; -1 in the program.
    """

    place: Place
    occurrence: int
    safe_point: int


DEFINITION = (
    "A point is a check of the interpreter at which it runs signal handlers and raises sent "
    "exceptions. Tried are: the first of the points that wait for the same safe point; the first "
    "and the last occurrence of each instruction of a program at which nothing waits; the first "
    "occurrence in all programs of each other instruction. Exceptions that CPython ignores, in "
    "destructors and callbacks of weak references, are counted and need not reach the caller."
)


def numbered(passed: Iterable[Sequence[str | int]]) -> list[Point]:
    """The points of a call, from what the native injector has kept."""
    seen: dict[Place, int] = {}
    points = []
    for *described, safe_point in passed:
        file, *rest = map(_without_numbers, described)
        place = Place(file, *rest)
        seen[place] = seen.get(place, -1) + 1
        points.append(Point(place, seen[place], int(safe_point)))
    return points


def _without_numbers(described: Any) -> Any:
    """The name of a file; of generated code without its numbers, which differ between calls."""
    if isinstance(described, str) and described.startswith("<"):
        return re.sub(r"\d+", "", described)
    return described


def representatives(points: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    """By program, the points to try: see ``DEFINITION``."""
    seen: set[Place] = set()
    chosen = {}
    for name, passed in points.items():
        first_of_window: dict[int, Point] = {}
        first_of_place: dict[Place, Point] = {}
        undeferred: dict[Place, list[Point]] = {}
        for point in passed:
            if point.safe_point < 0:
                undeferred.setdefault(point.place, []).append(point)
            else:
                first_of_window.setdefault(point.safe_point, point)
                first_of_place.setdefault(point.place, point)
        picked = dict.fromkeys(first_of_window.values())
        picked |= dict.fromkeys(p for ps in undeferred.values() for p in (ps[0], ps[-1]))
        picked |= dict.fromkeys(p for at, p in first_of_place.items() if at not in seen)
        seen.update(first_of_place)
        chosen[name] = list(picked)
    return chosen

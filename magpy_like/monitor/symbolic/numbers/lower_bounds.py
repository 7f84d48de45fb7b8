"""Lower bounds of numbers of the graph, such as a loop's index: they decide some conditions on the
number for every value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from magpy_like.monitor.symbolic.expressions import Expression, GraphNumber

MIRRORED: dict[Any, Callable[[Any, Any], Any]] = {
    operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt,
    operator.ge: operator.le, operator.eq: operator.eq, operator.ne: operator.ne,
}  # fmt: skip
"""Comparisons, and their equivalents with exchanged operands."""


class LowerBounds:
    """The known lower bounds of one run."""

    def __init__(self) -> None:
        self._least: dict[Expression, int] = {}
        self._later: dict[Expression, int] = {}

    def note(self, number: Expression, least: int, later: int | None = None) -> None:
        """Note that a number is at least ``least``, and from the second iteration on ``later``.

        The first iteration may take a path of its own."""
        self._least[number] = least
        if later is not None:
            self._later[number] = later

    def bound(self, part: Any) -> Any:
        """The lower bound of a number or an expression; None if it is not known."""
        return part if type(part) in (int, float) else self._least.get(part)

    def is_decided(self, question: Callable[..., Any], parts: tuple[Any, ...]) -> bool:
        """True if a condition has one truth value for all numbers within the bounds."""
        return _have_one_answer(question, parts, self._least)

    def is_decided_after_first(self, question: Callable[..., Any], parts: tuple[Any, ...]) -> bool:
        """The lower bounds from the second iteration on."""
        return _have_one_answer(question, parts, self._later)


def _have_one_answer(
    question: Callable[..., Any], parts: tuple[Any, ...], known: dict[Expression, int]
) -> bool:
    if len(parts) == 2 and isinstance(parts[1], GraphNumber) and question in MIRRORED:
        question, parts = MIRRORED[question], parts[::-1]
    least = known.get(parts[0]) if isinstance(parts[0], GraphNumber) else None
    if least is None:
        return False
    if question is operator.truth:
        return least > 0
    if len(parts) != 2 or question not in MIRRORED or type(parts[1]) not in (int, float):
        return False
    # Between the ends only equality may have another truth value, at one number.
    same = question(least, parts[1]) == question(math.inf, parts[1])
    return bool(same and (question not in (operator.eq, operator.ne) or parts[1] < least))

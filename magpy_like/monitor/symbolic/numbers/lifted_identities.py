"""Identities of lifted numbers: the expression of each object.

A lifted number is distinguished from equal numbers by identity. The monitor puts a new ``int``,
``float`` or ``str`` object of the same value on the operand stack, which no cache of small numbers
shares; wherever Python moves that object, the monitor recognizes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from magpy_like.monitor.objects.iterators import contents_of
from magpy_like.monitor.objects.object_replacement import OriginalNumbers
from magpy_like.monitor.symbolic.expressions import Expression, distinct_copy, is_array_number
from magpy_like.refgraph.plain_values import is_plain


class LiftedIdentities:
    """The objects with an expression in one run, and their symbolic twins."""

    def __init__(self, originals: OriginalNumbers) -> None:
        """``originals`` maps the new objects of lifted numbers to those that they replace."""
        self._originals = originals
        self._known: dict[int, tuple[Any, Expression]] = {}
        self._twins: dict[int, Any] = {}
        self.values: dict[Expression, Any] = {}
        """The value of each lifted number in this run."""

    def __bool__(self) -> bool:
        return bool(self._known)

    def lift(self, value: Any, expression: Expression, twin: Any = None) -> Any:
        """A new object equal to ``value``, registered with ``expression``."""
        number = distinct_copy(value)
        self.register(number, expression, twin)
        self._originals.note_computed(number, value)
        return number

    def register(self, number: Any, expression: Expression, twin: Any = None) -> None:
        """Register a number, whose object nothing else shares, with ``expression``."""
        self.register_object(number, expression)
        self.values.setdefault(expression, number)
        if twin is not None:
            self._twins[id(number)] = twin
        else:
            self._twins.pop(id(number), None)

    def register_object(self, value: Any, expression: Expression) -> None:
        """Register an object other than a number, such as a NumPy array, with ``expression``."""
        self._known[id(value)] = (value, expression)

    def expression(self, value: Any) -> Expression | None:
        """The expression of a lifted number, or None."""
        known = self._known.get(id(value))
        return known[1] if known is not None else None

    def expressions(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """The expressions of lifted numbers, and other values unchanged."""
        return tuple(self.expression(value) or value for value in values)

    def twin(self, value: Any) -> Any:
        """The symbolic number of a lifted number, or None."""
        return self._twins.get(id(value))

    def is_lifted(self, value: Any) -> bool:
        """True if the object has a registered expression."""
        return id(value) in self._known

    def any_lifted(self, values: Iterable[Any]) -> bool:
        """True if one of these values is lifted; containers are not searched."""
        return any(id(value) in self._known for value in values)

    def holds_lifted(self, value: Any) -> bool:
        """True if a value is lifted or a container that holds a lifted number at any depth."""
        return any(id(number) in self._known for number in numbers_in(value))

    def twins_of(self, value: Any) -> Any:
        """``value`` with symbolic numbers in place of lifted ones; None if one of them has none."""
        try:
            return self._with_twins(value)
        except LookupError:
            return None

    def _with_twins(self, value: Any) -> Any:
        kind = type(value)
        if id(value) in self._known:
            return self._twins[id(value)]
        if kind is tuple or kind is torch.Size:
            return tuple(self._with_twins(item) for item in value)
        if kind is list:
            return [self._with_twins(item) for item in value]
        if not is_plain(value):
            raise LookupError
        return int(value) if kind is bool else value  # SymPy's truth values are no numbers


def numbers_in(value: Any) -> Iterator[Any]:
    """The numbers and texts in nested containers; a text may be computed from lifted numbers."""
    pending, seen = [value], set[int]()
    while pending:
        value = pending.pop()
        if type(value) in (int, float, str) or is_array_number(value):
            yield value
        elif id(value) not in seen and (contents := contents_of(value)):
            seen.add(id(value))
            pending += reversed(contents)

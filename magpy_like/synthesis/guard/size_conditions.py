"""Guards on sizes that may vary: bounds of each, and relations between them.

The ``ShapeEnv`` of a run has gathered what the program, torch's operators and the backend relied
on. A relation that the bounds imply is no guard of its own (PyTorch 2 paper, section 3.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import sympy

from magpy_like.monitor.symbolic.expressions import (
    EntryValue,
    Expression,
    Size,
    Untranslatable,
    from_sympy,
)
from magpy_like.monitor.symbolic.symbolic_twin import SymbolicTwin, hint
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.symbolic_expressions import ValueRanges, bound_sympy

LARGEST = (1 << 63) - 1
"""The largest size that torch can count."""


class Bounds(NamedTuple):
    """The values that a number outside may have, both ends included."""

    number: Size | EntryValue
    least: int
    most: int
    reason: str
    """Where the program relied on one value, if there is but one."""

    @property
    def varies(self) -> bool:
        return self.least < self.most


def size_guards(twin: SymbolicTwin) -> tuple[list[Bounds], list[Expression]]:
    """Bounds of every size and number outside, and expressions that must be true beside them."""
    twin.note_location()
    while True:
        ranges = {
            symbol: _range(twin, symbol)
            for symbol, source in twin.sources.items()
            if is_instance(source, Size | EntryValue)
        }
        for guard in twin.env.guards:
            _narrow(guard.expr, ranges, twin)
        try:
            conditions = _conditions(twin, ranges)
        except _NotExact as reason:
            for symbol in reason.symbols:
                twin.specialize(twin.numbers[twin.sources[symbol]])
            continue
        bounds = [
            Bounds(
                twin.sources[symbol],
                _whole(found.lower),
                _whole(found.upper),
                twin.specialization_location(symbol),
            )
            for symbol, found in ranges.items()
        ]
        return bounds, conditions


class _NotExact(Exception):
    def __init__(self, symbols: Any) -> None:
        self.symbols = symbols


def _range(twin: SymbolicTwin, symbol: sympy.Symbol) -> Any:
    value = twin.only_value(symbol)
    if value is not None:
        return ValueRanges(value, value)
    return twin.env.var_to_range[symbol]


_SEARCHED = 1 << 12
"""How many small values of a number are looked at one by one."""


def _narrow(guard: Any, ranges: dict[sympy.Symbol, Any], twin: SymbolicTwin) -> None:
    """Turn a guard on one number into its lower bound, where it is false of all smaller values."""
    if len(guard.free_symbols) != 1:
        return
    (symbol,) = guard.free_symbols
    if symbol not in ranges or _holds(guard, ranges):
        return
    lower, upper = ranges[symbol].lower, ranges[symbol].upper
    first, seen = _whole(lower), hint(twin.numbers[twin.sources[symbol]])
    if not 0 <= seen - first <= _SEARCHED:
        return
    least = seen
    while least > first and guard.xreplace({symbol: sympy.Integer(least - 1)}) == sympy.true:
        least -= 1
    smaller = (guard.xreplace({symbol: sympy.Integer(n)}) for n in range(first, least))
    narrower = ValueRanges(least, upper)
    if all(value == sympy.false for value in smaller):
        if _holds(guard, {symbol: narrower}):
            ranges[symbol] = narrower


def _holds(guard: Any, ranges: dict[sympy.Symbol, Any]) -> bool:
    """Whether a guard is true of all values in the ranges."""
    found = bound_sympy(guard, ranges)
    return bool(found.lower == found.upper == sympy.true)


def _whole(end: Any) -> int:
    """An end of a range; torch has infinities of its own for integers."""
    try:
        return max(-LARGEST, min(LARGEST, int(end)))
    except (TypeError, OverflowError, AttributeError):
        return LARGEST if end > 0 else -LARGEST


def _conditions(twin: SymbolicTwin, ranges: dict[sympy.Symbol, Any]) -> list[Expression]:
    found: dict[Any, Expression] = {}
    constants = {s: r.lower for s, r in ranges.items() if r.lower == r.upper}
    for guard in twin.env.guards:
        text = guard.expr.xreplace(constants)
        if text in (sympy.true, sympy.false) or not text.free_symbols:
            continue
        if _holds(text, ranges):
            continue
        try:
            condition = from_sympy(text, twin.source_of)
        except Untranslatable:
            raise _NotExact(text.free_symbols) from None
        found[text] = condition
    for guard in reversed(list(found)):
        others = (o for o in found if o is not guard and o.free_symbols == guard.free_symbols)
        if any(_implies(other, guard, ranges) for other in others):
            del found[guard]
    return list(found.values())


def _implies(guard: Any, other: Any, ranges: dict[sympy.Symbol, Any]) -> bool:
    known, wanted = _never_negative(guard), _never_negative(other)
    if len(known) != 1:  # what holds in one of several ways is not known in which
        return False
    return any(bound_sympy(sympy.expand(e - known[0]), ranges).lower >= 0 for e in wanted)


def _never_negative(guard: Any) -> list[Any]:
    """Of a relation of whole numbers: it holds where one of these is not negative."""
    if not all(side.is_integer for side in guard.args):
        return []
    makers = _SLACK.get(type(guard), ())
    return [make(*guard.args) for make in makers]


_SLACK: dict[type, tuple[Callable[[Any, Any], Any], ...]] = {
    sympy.Ge: (lambda a, b: a - b,),
    sympy.Gt: (lambda a, b: a - b - 1,),
    sympy.Le: (lambda a, b: b - a,),
    sympy.Lt: (lambda a, b: b - a - 1,),
    sympy.Ne: (lambda a, b: a - b - 1, lambda a, b: b - a - 1),
}

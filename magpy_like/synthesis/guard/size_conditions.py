"""Conditions on sizes and strides that may vary: bounds of each, and relations between them.

The ``ShapeEnv`` of a run has collected the guards of the program, of torch's operators and of the
backend. A relation that the bounds imply is no condition of its own (PyTorch 2 paper, section 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import sympy

from magpy_like.config import config
from magpy_like.monitor.symbolic.expressions import (
    EntryValue,
    Expression,
    Size,
    Stride,
    Untranslatable,
    from_sympy,
)
from magpy_like.monitor.symbolic.symbolic_twin import SymbolicTwin, hint
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.tracing.symbolic_expressions import ValueRanges, bound_sympy

MAX_SIZE = (1 << 63) - 1
"""The largest size of a tensor: torch's sizes are signed 64-bit integers."""


class Bounds(NamedTuple):
    """The range of an external size, stride or number, both ends included."""

    number: Size | Stride | EntryValue
    least: int
    most: int
    reason: str
    """The position at which the program specialized the number, if the range has one value."""

    @property
    def varies(self) -> bool:
        return self.least < self.most


def size_guards(twin: SymbolicTwin) -> tuple[list[Bounds], list[Expression]]:
    """Bounds of every external size, stride and number, and expressions that must be true.

    A size whose guards have no expression in Python is specialized.
    """
    twin.note_location()
    while True:
        ranges = {
            symbol: _range(twin, symbol)
            for symbol, source in twin.sources.items()
            if is_instance(source, Size | Stride | EntryValue)
        }
        for guard in twin.env.guards:
            _narrow(guard.expr, ranges, twin)
        try:
            conditions = _conditions(twin, ranges)
        except _Untranslated as reason:
            _specialize(twin, reason.symbols)
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


class _Untranslated(Exception):
    def __init__(self, symbols: Any) -> None:
        self.symbols = symbols


def _specialize(twin: SymbolicTwin, symbols: Iterable[sympy.Symbol]) -> None:
    """Turn symbols into constants.

    Raises:
        Split: one depends on data.
    """
    for symbol in symbols:
        number = twin.numbers.get(twin.sources[symbol])
        if number is None or not twin.specialize(number):
            raise Split(
                SplitReason.DATA_DEPENDENT_SIZE,
                "a number that depends on a tensor's data decides control flow",
            )


def _range(twin: SymbolicTwin, symbol: sympy.Symbol) -> Any:
    value = twin.only_value(symbol)
    if value is not None:
        return ValueRanges(value, value)
    return twin.env.var_to_range[symbol]


def _narrow(guard: Any, ranges: dict[sympy.Symbol, Any], twin: SymbolicTwin) -> None:
    """Turn a guard on one number into a lower bound, if it is false for all smaller values."""
    if len(guard.free_symbols) != 1:
        return
    (symbol,) = guard.free_symbols
    if symbol not in ranges or _holds(guard, ranges):
        return
    lower, upper = ranges[symbol].lower, ranges[symbol].upper
    first, recorded = _whole(lower), hint(twin.numbers[twin.sources[symbol]])
    if not 0 <= recorded - first <= config.max_searched_sizes:
        return
    least = recorded
    while least > first and guard.xreplace({symbol: sympy.Integer(least - 1)}) == sympy.true:
        least -= 1
    smaller = (guard.xreplace({symbol: sympy.Integer(n)}) for n in range(first, least))
    narrower = ValueRanges(least, upper)
    if all(value == sympy.false for value in smaller):
        if _holds(guard, {symbol: narrower}):
            ranges[symbol] = narrower


def _holds(guard: Any, ranges: dict[sympy.Symbol, Any]) -> bool:
    """True if the ranges imply a guard."""
    found = bound_sympy(guard, ranges)
    return bool(found.lower == found.upper == sympy.true)


def _whole(end: Any) -> int:
    """An end of a range as an int; torch has infinities of its own for integers."""
    try:
        return max(-MAX_SIZE, min(MAX_SIZE, int(end)))
    except (TypeError, OverflowError, AttributeError):
        return MAX_SIZE if end > 0 else -MAX_SIZE


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
            fixed = {s: twin.only_value(s) for s in text.free_symbols}
            if None in fixed.values():
                raise _Untranslated([s for s in fixed if fixed[s] is None]) from None
            continue  # guards on the symbols require these values
        found[text] = condition
    for guard in reversed(list(found)):
        others = (o for o in found if o is not guard and o.free_symbols == guard.free_symbols)
        if any(_implies(other, guard, ranges) for other in others):
            del found[guard]
    return list(found.values())


def _implies(guard: Any, other: Any, ranges: dict[sympy.Symbol, Any]) -> bool:
    premises, conclusions = _never_negative(guard), _never_negative(other)
    if len(premises) != 1:  # it is unknown which part of a disjunction is true
        return False
    return any(bound_sympy(sympy.expand(e - premises[0]), ranges).lower >= 0 for e in conclusions)


def _never_negative(guard: Any) -> list[Any]:
    """Expressions for a relation of integers: it holds if one of them is not negative."""
    if not all(operand.is_integer for operand in guard.args):
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

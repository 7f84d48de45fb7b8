"""Arithmetic that may raise an exception for other numbers of the same types.

The program may catch the exception or end with it. So a mock does such arithmetic before it has any
effect, whether or not it uses the result; if it raises, the program runs natively.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from magpy_like.monitor.symbolic import lifted_text
from magpy_like.monitor.symbolic.expressions import DrawnValue, EntryValue, leaves_of
from magpy_like.monitor.symbolic.numbers.cached_look_ups import PartOfResult
from magpy_like.monitor.symbolic.numbers.pure_number_calls import LiftedCall
from magpy_like.native.instance_checks import is_instance

_IN_PLACE = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod, operator.ipow: operator.pow, operator.iand: operator.and_,
    operator.ior: operator.or_, operator.ixor: operator.xor, operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}  # fmt: skip
_NEVER = {
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.invert,
    operator.and_, operator.or_, operator.xor, abs, min, max, lifted_text.joined,
    math.isnan, math.isinf, math.isfinite, math.isclose, math.copysign, math.fabs, math.degrees,
    math.radians, math.atan, math.atan2, math.asinh, math.tanh, math.erf, math.erfc, math.hypot,
}  # fmt: skip
"""Functions that never raise for numbers of one type."""
_OF_FLOATS = frozenset(filter(callable, vars(math).values()))
"""Functions that convert an integer to ``float`` first."""
_DIVISIONS = {operator.truediv, operator.floordiv, operator.mod}
_SHIFTS = {operator.lshift, operator.rshift}
_ROUNDS = {int, round, math.floor, math.ceil}
_WRITES = {str, repr, format, str.format, lifted_text.formatted, lifted_text.percent}


def may_raise(
    operation: Callable[..., Any],
    operands: tuple[Any, ...],
    parts: tuple[Any, ...],
    least: Callable[[Any], Any],
) -> bool:
    """True if ``operation`` may raise for some numbers of the types of ``operands``.

    ``parts`` are the operands, with expressions for lifted ones; ``least`` returns the lower bound
    of one, None if it is not known.
    """
    if is_instance(operation, PartOfResult):
        return False  # the guard has made the call
    if is_instance(operation, LiftedCall):
        return True
    operation = _IN_PLACE.get(operation, operation)
    kinds = set(map(type, operands))
    if any(map(_may_be_huge, operands, parts)):
        return not (kinds == {int} and operation in _NEVER and operation not in _OF_FLOATS)
    if operation in _NEVER or operation is float:
        return False
    if operation in _DIVISIONS:
        divisor = least(parts[1])
        return divisor is None or not (divisor > 0 or (parts[1] is operands[1] and divisor))
    if operation in _SHIFTS:
        count = least(parts[1])
        return count is None or count < 0 or parts[1] is not operands[1]
    if operation in _ROUNDS:
        return float in kinds
    if operation in (operator.pow, pow):
        return _power_may_raise(operands, parts, least)
    if operation in _WRITES:
        forms = [part for part in parts if type(part) is str]
        return len(forms) < sum(type(o) is str for o in operands) or any("c" in f for f in forms)
    return True


def _may_be_huge(value: Any, part: Any) -> bool:
    """True if a number may be an integer too large for ``float`` and for conversion to text."""
    return type(value) is int and any(
        is_instance(leaf, EntryValue | DrawnValue) for leaf in leaves_of(part)
    )


def _power_may_raise(
    operands: tuple[Any, ...], parts: tuple[Any, ...], least: Callable[[Any], Any]
) -> bool:
    exponent = least(parts[1])
    if len(parts) > 2 or exponent is None or exponent < 0:
        return True
    if type(operands[0]) is type(operands[1]) is int:
        return parts[1] is not operands[1]  # its size depends on the exponent
    return not (parts[0] is operands[0] and 0 < operands[0] <= 1)

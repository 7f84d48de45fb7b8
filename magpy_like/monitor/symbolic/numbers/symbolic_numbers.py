"""Symbolic numbers of lifted ones: arithmetic repeated on the symbolic twin."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.symbolic.expressions import (
    Expression,
    Untranslatable,
    is_number,
    is_too_long,
)
from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities
from magpy_like.monitor.symbolic.numbers.number_guards import NumberGuards
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_interop.symbolic_floats import computes_as_written

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

ARITHMETIC = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor,
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow, operator.ilshift, operator.irshift, operator.iand, operator.ior,
    operator.ixor, operator.neg, operator.pos, operator.invert,
}  # fmt: skip
"""Operators that symbolic numbers overload."""


def symbolic_max(numbers: Any) -> Any:
    """``max`` of a container that may hold symbolic numbers."""
    return reduce(torch.sym_max, numbers)


def symbolic_min(numbers: Any) -> Any:
    """``min`` of a container that may hold symbolic numbers."""
    return reduce(torch.sym_min, numbers)


_SYMBOLIC: dict[Any, Callable[..., Any]] = {
    max: lambda *numbers: symbolic_max(numbers),
    min: lambda *numbers: symbolic_min(numbers),
    int: torch.sym_int,
    float: torch.sym_float,
    abs: abs,
    math.ceil: math.ceil,
    math.floor: math.floor,
}
"""Functions of numbers that have a symbolic form; others would query the value."""


class SymbolicNumbers:
    """The symbolic numbers of one run's lifted numbers."""

    def __init__(self, rec: Recording, identities: LiftedIdentities, guards: NumberGuards) -> None:
        self._rec, self._identities, self._guards = rec, identities, guards

    def lift(self, value: Any, twin: Any) -> Any:
        """``value`` with lifted numbers where ``twin`` is symbolic.

        Args:
            value: a number, or a tuple or list of such values, read from a tensor.
            twin: the same, read from the tensor's twin.

        Raises:
            Split: it depends on data, and Python inspects it.
        """
        if not is_number(value):
            if is_instance(value, tuple | list) and len(twin) == len(value):
                items = [self.lift(a, b) for a, b in zip(value, twin, strict=True)]
                return type(value)(items)
            if is_instance(twin, torch.SymBool):
                self._guards.require_symbolic(twin)
            return value
        if not is_instance(twin, torch.SymInt | torch.SymFloat):
            return value
        assert self._rec.sizes.twin is not None
        try:
            expression = self._rec.sizes.twin.expression(twin)
        except Untranslatable:
            self._guards.require_symbolic(twin == value)
            return value
        if not is_instance(expression, Expression):
            return value
        return self._identities.lift(value, expression, twin)

    def compute(self, operation: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> Any:
        """``operation`` on the operands' twins, whose result in this run is ``value``.

        None if a lifted operand has no twin or the operation no symbolic form. A plain number if
        the result does not depend on the operands.
        """
        twins = self._identities.twins_of(operands)
        symbolic = operation if operation in ARITHMETIC else _SYMBOLIC.get(operation)
        if twins is None or symbolic is None or any(map(_is_too_long, twins)):
            return None
        try:
            twin = symbolic(*twins)
        except Exception:  # of torch or of SymPy: a number without symbolic form is specialized
            return None
        if type(value) is int:
            return twin
        return twin if computes_as_written(operation, twins, twin) else None


def _is_too_long(twin: Any) -> bool:
    return is_instance(twin, torch.SymInt | torch.SymFloat) and is_too_long(twin.node.expr)

"""Functions that reduce a container of lifted numbers to one, such as ``sum``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from magpy_like.monitor.symbolic.expressions import is_number, sum_of
from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities
from magpy_like.monitor.symbolic.numbers.number_arithmetic import SELECTIONS, NumberArithmetic
from magpy_like.monitor.symbolic.numbers.number_guards import NumberGuards
from magpy_like.monitor.symbolic.numbers.symbolic_numbers import (
    SymbolicNumbers,
    symbolic_max,
    symbolic_min,
)
from magpy_like.native.instance_checks import is_instance

FOLDS: dict[Any, Callable[..., Any]] = {
    math.prod: math.prod,
    torch.Size.numel: math.prod,
    max: symbolic_max,
    min: symbolic_min,
    sum: sum,
}
"""Functions of one container of numbers, and the same of symbolic ones."""

_OF_ELEMENTS: dict[Any, Callable[..., Any]] = {sum: sum_of, max: max, min: min}
"""Functions of one container, and the same with its elements as arguments."""


class NumberFolds:
    """Folds of containers in one run."""

    def __init__(
        self,
        identities: LiftedIdentities,
        guards: NumberGuards,
        symbolic: SymbolicNumbers,
        arithmetic: NumberArithmetic,
    ) -> None:
        self._identities, self._guards = identities, guards
        self._symbolic, self._arithmetic = symbolic, arithmetic

    def can_compute(self, operation: Any, args: tuple[Any, ...]) -> bool:
        """True if ``compute`` can record ``operation(*args)``."""
        if operation not in FOLDS or len(args) != 1 or not is_instance(args[0], list | tuple):
            return False
        return operation in _OF_ELEMENTS or self._identities.twins_of(args) is not None

    def compute(self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """The lifted result of ``operation(*args)``, which is ``value`` in this run.

        None after the numbers were specialized: then the result is a constant.
        """
        twins = self._identities.twins_of(args)
        numbers = args[0] if type(args[0]) in (list, tuple) else ()
        differ = operation in SELECTIONS and len(set(map(type, numbers))) > 1
        if twins is not None and type(value) is int and not differ:
            return self._symbolic.lift(value, FOLDS[operation](*twins))
        if len(numbers) > 1 and all(map(is_number, numbers)) and operation in _OF_ELEMENTS:
            return self._arithmetic.compute(_OF_ELEMENTS[operation], tuple(numbers), value)
        self._guards.specialize(args)
        return None

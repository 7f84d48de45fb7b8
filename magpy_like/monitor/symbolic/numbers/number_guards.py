"""Guards on lifted numbers that decide control flow.

A condition that a guard can compute at entry is recorded. A value that only operators compute is
speculated on. If neither is possible, the program splits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.symbolic.expressions import (
    Computed,
    Expression,
    GraphNumber,
    depends_on_tensor,
    is_computable_at_entry,
    is_liftable,
    is_number,
)
from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities, numbers_in
from magpy_like.monitor.symbolic.numbers.lower_bounds import LowerBounds
from magpy_like.monitor.symbolic.numbers.speculated_values import SpeculatedValues
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable, Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

_FLOATS = (float, torch.SymFloat)
"""Python compares these; symbolic arithmetic might round in another way."""


class NumberGuards:
    """The conditions on lifted numbers under which a record holds."""

    def __init__(
        self, rec: Recording, identities: LiftedIdentities, speculated: SpeculatedValues
    ) -> None:
        self._rec, self._identities, self._speculated = rec, identities, speculated
        self.conditions: list[tuple[Expression, Any]] = []
        """Expressions over values at entry, and the value that the guard requires of each."""
        self.lower_bounds = LowerBounds()

    def specialize(self, values: Any) -> None:
        """Turn the lifted numbers in ``values`` into constants: unrecorded code inspects them.

        Raises:
            Split: a value is only known when the region runs, and cannot be speculated on.
        """
        for value in numbers_in(values):
            expression = self._identities.expression(value)
            if expression is None:
                continue
            if not is_computable_at_entry(expression) or depends_on_tensor(expression):
                self._speculated.add(expression, value)
                continue
            twin = self._identities.twin(value)
            if is_instance(twin, torch.SymInt):
                self.require_symbolic(twin == value)
            elif not any(guarded is expression for guarded, _ in self.conditions):
                self.conditions.append((expression, value))

    def require_symbolic(self, condition: Any) -> bool:
        """The truth of a symbolic condition, which the shape environment guards from now on.

        Raises:
            Split: it depends on data.
        """
        try:
            truth = bool(condition)
        except Exception:  # of torch or of SymPy, which solves for it
            raise Split(
                SplitReason.DATA_DEPENDENT_SIZE,
                "a size that depends on a tensor's data decides control flow",
            ) from None
        if self._rec.sizes.twin is not None:
            self._rec.sizes.twin.note_location()
        return truth

    def require_truth(self, operation: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """Guard the truth of ``operation(*operands)``, which decides control flow.

        Raises:
            Split: an operand is only known when the region runs, and cannot be speculated on.
        """
        parts = self._identities.expressions(operands)
        twins = self._identities.twins_of(operands)
        numbers = all(is_liftable(operand) for operand in operands)
        if self.lower_bounds.is_decided(operation, parts):
            return
        if numbers and not all(map(is_computable_at_entry, parts)):
            self._speculated.add(Computed(operation, parts), operation(*operands))
        elif not self.are_computable_at_entry(operands):
            self.specialize(operands)
        elif twins is not None and not any(is_instance(twin, _FLOATS) for twin in twins):
            self.require_symbolic(operation(*twins))
        elif numbers:
            self.conditions.append((Computed(operation, parts), operation(*operands)))
        else:
            self.specialize(operands)

    def require_result(
        self,
        operation: Callable[..., Any],
        operands: tuple[Any, ...],
        value: Any,
        parts: tuple[Any, ...] | None = None,
    ) -> None:
        """Guard that ``operation(*operands)`` is ``value``.

        ``parts`` are the expressions of the operands; by default those that are registered for
        them.

        Raises:
            Split: an operand is only known when the region runs, and cannot be speculated on.
        """
        if parts is None:
            parts = self._identities.expressions(operands)
        if all(map(is_computable_at_entry, parts)):
            self.conditions.append((Computed(operation, parts), value))
        else:
            self._speculated.add(Computed(operation, parts), value)

    def differs_between_iterations(
        self, operation: Callable[..., Any], operands: tuple[Any, ...]
    ) -> bool:
        """True if the truth of ``operation(*operands)`` may differ between a loop's iterations.

        Raises:
            Split: it differs in the first iteration only, which may take a path of its own.
        """
        parts = self._identities.expressions(operands)
        if not any(is_instance(part, GraphNumber) for part in parts):
            return False
        if not all(map(is_number, operands)) or self.lower_bounds.is_decided(operation, parts):
            return False
        if self.lower_bounds.is_decided_after_first(operation, parts):
            raise LoopNotMergeable("an iteration tests whether it is the first one")
        return True

    def are_computable_at_entry(self, values: tuple[Any, ...]) -> bool:
        """True if a guard can compute all numbers in these values and their contents."""
        expression = self._identities.expression
        return all(is_computable_at_entry(expression(number)) for number in numbers_in(values))

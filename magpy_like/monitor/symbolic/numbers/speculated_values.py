"""Speculated values: values known only when operators have run, on which control flow depends.

The mock computes them before its effects. If one differs from this run's, the mock rolls back and
the program runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.random_draws import RepeatedCall
from magpy_like.monitor.symbolic.expressions import Expression, is_drawn
from magpy_like.split_points import SourcePosition, Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording


class SpeculatedValues:
    """The speculated values of a run, and the conditions for further ones."""

    def __init__(
        self,
        rec: Recording,
        draws: list[RepeatedCall],
        speculation_position: Callable[[], SourcePosition | None],
    ) -> None:
        """``speculation_position`` returns the program's position; None where values must not be
        speculated on."""
        self._rec, self._draws = rec, draws
        self._speculation_position = speculation_position
        self.values: list[tuple[Expression, Any, SourcePosition]] = []
        """Expressions, the value that each must have, and the position that depends on it."""

    def add(self, expression: Expression, value: Any) -> None:
        """Speculate that ``expression`` has ``value``: the program's control flow depends on it.

        Raises:
            Split: it cannot be speculated on here.
        """
        if not is_drawn(expression):
            detail = "a tensor's value, read as a number, decides control flow"
            position = self.require_position(SplitReason.TENSOR_VALUE_READ, detail)
        elif self._rec.operators.shared_arrays:
            detail = "an element of a NumPy array decides control flow"
            position = self.require_position(SplitReason.NUMPY_ARRAY, detail)
        else:
            detail = "a random number decides control flow"
            position = self.require_position(SplitReason.RANDOM_VALUE_DECIDES, detail)
        if not any(known is expression for known, *_ in self.values):
            self.values.append((expression, value, position))

    def require_position(self, reason: SplitReason, detail: str) -> SourcePosition:
        """The program's position, if a misspeculation could still be rolled back there.

        Raises:
            Split: it could not, or the program must split at this position.
        """
        is_possible = not (self._rec.operators.is_isolated or self._rec.running.depth)
        position = self._speculation_position() if is_possible else None
        if position is None or not self.can_roll_back():
            raise Split(reason, detail)
        return position

    def can_roll_back(self) -> bool:
        """True if a mock can undo everything done before its effects."""
        return self.can_roll_back_draws() and not self._rec.writes.changed_inputs()

    def can_roll_back_draws(self) -> bool:
        """True if generators and modes can be reset; writes to tensors do not matter."""
        return (
            all(call.can_roll_back for call in self._draws) and not self._rec.operators.sets_modes
        )

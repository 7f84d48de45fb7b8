"""Lifted numbers of a run: numbers that may differ at the next call (MagPy, section 6.2).

The monitor knows a lifted number by the identity of its object. Arithmetic on it is recorded as an
expression, which the mock computes again; any other use of its value adds a guard, or splits the
program where no guard can check it. Each of these subjects has a class of its own, which
``LiftedNumbers`` composes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.objects.object_replacement import OriginalNumbers
from magpy_like.monitor.random_draws import RepeatedCall
from magpy_like.monitor.symbolic import expressions
from magpy_like.monitor.symbolic.expressions import DrawnValue, Expression
from magpy_like.monitor.symbolic.numbers.cached_look_ups import LookUps
from magpy_like.monitor.symbolic.numbers.external_numbers import ExternalNumbers
from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities
from magpy_like.monitor.symbolic.numbers.number_arithmetic import NumberArithmetic
from magpy_like.monitor.symbolic.numbers.number_folds import NumberFolds
from magpy_like.monitor.symbolic.numbers.number_guards import NumberGuards
from magpy_like.monitor.symbolic.numbers.speculated_values import SpeculatedValues
from magpy_like.monitor.symbolic.numbers.symbolic_numbers import SymbolicNumbers
from magpy_like.monitor.symbolic.numbers.tensor_numbers import TensorNumbers
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import SourcePosition

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording


class LiftedNumbers:
    """The lifted numbers of a run.

    The methods are those that most rules need; the attributes have the rest, by subject.
    """

    def __init__(
        self,
        rec: Recording,
        speculation_position: Callable[[], SourcePosition | None],
        originals: OriginalNumbers,
    ) -> None:
        """
        Args:
            rec: the recording of the run.
            speculation_position: the program's position; None where values must not be
                speculated on.
            originals: maps the new objects of lifted numbers to those that they replace.
        """
        self._originals = originals
        self.draws: list[RepeatedCall] = []
        """The calls that the mock repeats before the operator graph."""
        self.identities = LiftedIdentities(originals)
        self.external = ExternalNumbers(rec, self.identities, originals)
        self.speculated = SpeculatedValues(rec, self.draws, speculation_position)
        self.guards = NumberGuards(rec, self.identities, self.speculated)
        self.symbolic = SymbolicNumbers(rec, self.identities, self.guards)
        self.arithmetic = NumberArithmetic(rec, self.identities, self.guards, self.symbolic)
        self.folds = NumberFolds(self.identities, self.guards, self.symbolic, self.arithmetic)
        self.look_ups = LookUps(rec, self.identities, originals)
        self.tensors = TensorNumbers(
            rec, self.identities, self.symbolic, self.arithmetic, self.speculated
        )

    def __bool__(self) -> bool:
        """True if the program may hold a lifted number, be it of an earlier recording."""
        return bool(self.identities) or bool(self.draws) or self._originals.any()

    def lift(self, value: Any, expression: Expression, twin: Any = None) -> Any:
        """A new object equal to ``value``, registered with ``expression``."""
        return self.identities.lift(value, expression, twin)

    def expression(self, value: Any) -> Expression | None:
        """The expression of a lifted number, or None."""
        return self.identities.expression(value)

    def twin(self, value: Any) -> Any:
        """The symbolic number of a lifted one, or None."""
        return self.identities.twin(value)

    def is_lifted(self, value: Any) -> bool:
        """True if an expression is known for this object."""
        return self.identities.is_lifted(value)

    def any_lifted(self, values: Iterable[Any]) -> bool:
        """True if one of these values is lifted; containers are not searched."""
        return self.identities.any_lifted(values)

    def is_drawn(self, value: Any) -> bool:
        """True if a value depends on random numbers that the mock draws again."""
        return expressions.is_drawn(self.expression(value))

    def is_computable_before_graph(self, value: Any) -> bool:
        """True if the mock can compute a value before the operator graph runs."""
        expression = self.expression(value)
        if expression is None:
            return is_plain(value)
        return expressions.is_computable_before_graph(expression)

    def specialize(self, values: Any) -> None:
        """Turn the lifted numbers in ``values`` into guarded constants; see ``NumberGuards``."""
        self.guards.specialize(values)

    def repeat(self, call: RepeatedCall) -> DrawnValue:
        """The result of a call that the mock repeats."""
        self.draws.append(call)
        return DrawnValue(len(self.draws) - 1)

"""Arithmetic on lifted numbers: recorded as expressions, or as nodes of the operator graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.monitor.symbolic.expressions import (
    Computed,
    EntryValue,
    Expression,
    GraphNumber,
    depends_on_tensor,
    distinct_copy,
    is_computable_at_entry,
    is_computable_before_graph,
    is_number,
    is_too_long,
    needs_python_list,
)
from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities
from magpy_like.monitor.symbolic.numbers.number_guards import NumberGuards
from magpy_like.monitor.symbolic.numbers.pure_number_calls import LIFTED, LiftedCall
from magpy_like.monitor.symbolic.numbers.raising_arithmetic import may_raise
from magpy_like.monitor.symbolic.numbers.symbolic_numbers import SymbolicNumbers
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

SELECTIONS = (max, min)
"""Functions that return one of their operands."""
_POWERS = (operator.pow, operator.ipow, pow)
_DIVISIONS = {
    operator.truediv, operator.floordiv, operator.mod,
    operator.itruediv, operator.ifloordiv, operator.imod,
}  # fmt: skip


class NumberArithmetic:
    """The operations of one run on lifted numbers."""

    def __init__(
        self,
        rec: Recording,
        identities: LiftedIdentities,
        guards: NumberGuards,
        symbolic: SymbolicNumbers,
    ) -> None:
        self._rec, self._identities, self._guards = rec, identities, guards
        self._symbolic = symbolic
        self.may_raise: list[Computed] = []
        """Arithmetic that raises for some numbers, in the program's order: the mock does it before
        all effects."""
        self.in_python: dict[fx.Node, Computed] = {}
        """Python's form of the nodes that compute numbers in the graph."""

    def compute(self, operation: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> Any:
        """The lifted result of ``operation(*operands)``, which is ``value`` in this run.

        None if the result does not depend on the operands.
        """
        operands = self._of_bounded_length(operands)
        if not any(map(self._identities.holds_lifted, operands)):
            return None
        if operation in SELECTIONS and len(set(map(type, operands))) > 1:
            return self._require_selection(operation, operands)
        if operation in _POWERS:
            self._require_type_of_power(*operands)
        self._require_no_division_by_zero(operation, operands)
        twin = self._symbolic.compute(operation, operands, value)
        if twin is not None and not is_instance(twin, torch.SymInt | torch.SymFloat):
            return None  # it is the same whatever the operands are
        parts = self._identities.expressions(operands)
        computed = self._computed(operation, operands, parts)
        if twin is None:
            twin = self._twin_of_rounded(computed, operands, value)
        in_graph = is_number(value) and any(is_instance(part, GraphNumber) for part in parts)
        if not in_graph or any(map(needs_python_list, parts)):
            return self._identities.lift(value, computed, twin)
        node = self._rec.operators.numbers.add_arithmetic(operation, operands, value)
        self.in_python[node] = computed
        number = GraphNumber(node)
        bounds = [self._guards.lower_bounds.bound(part) for part in parts]
        if operation in (operator.add, operator.iadd) and None not in bounds:
            self._guards.lower_bounds.note(number, sum(bounds))
        return self._identities.lift(value, number, twin)

    def _twin_of_rounded(
        self, computed: Computed, operands: tuple[Any, ...], value: Any
    ) -> torch.SymInt | None:
        """A new symbolic number for an integer computed from floats, from which sizes may follow.

        The guard computes it as Python does."""
        twin = self._rec.sizes.twin
        if twin is None or type(value) is not int or float not in map(type, operands):
            return None
        if not is_computable_at_entry(computed) or depends_on_tensor(computed):
            return None
        symbol: torch.SymInt = twin.add_number(computed, value, size=False)
        return symbol

    def compute_sequence(
        self, operation: Callable[..., Any], operands: tuple[Any, ...], values: Any
    ) -> Any:
        """The lifted ``values`` of a tuple or list that ``operation`` returns, one type each."""
        operands = self._of_bounded_length(operands)
        parts = self._identities.expressions(operands)
        whole = self._computed(operation, operands, parts)
        return type(values)(
            [
                self._identities.lift(value, Computed(operator.getitem, (whole, i)))
                for i, value in enumerate(values)
            ]
        )

    def read_item(self, node: ShadowNode, key: Any, value: Any) -> Any:
        """The number at a lifted key of an external list, which is as it was at entry."""
        (key,) = self._of_bounded_length((key,))
        take = LiftedCall(operator.getitem, (LIFTED, LIFTED), {}, type(value))
        parts = (EntryValue(node), *self._identities.expressions((key,)))
        computed = self._computed(take, (node.variable, key), parts)
        return self._identities.lift(value, computed)

    def _of_bounded_length(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands, with constants in place of integers and texts with too long expressions.

        Floats stay: SymPy does not solve for them, and the mock shares parts of expressions.
        """
        bounded = list(operands)
        for i, operand in enumerate(operands):
            expression = self._as_python_computes(self._identities.expression(operand))
            if type(operand) is not float and is_too_long(expression):
                self._guards.specialize((operand,))
                bounded[i] = distinct_copy(operand)
        return tuple(bounded)

    def expression(
        self, operation: Callable[..., Any], operands: tuple[Any, ...], parts: tuple[Any, ...]
    ) -> Computed:
        """The expression of ``operation(*operands)``.

        ``parts`` are the operands, some of them as expressions.
        """
        known = [
            part if is_instance(part, Expression) else self._identities.expression(part) or part
            for part in parts
        ]
        return self._computed(operation, operands, tuple(known))

    def compute_in_python(
        self, node: fx.Node, operation: Callable[..., Any], value: Any, operand: GraphNumber
    ) -> None:
        """Note Python's form of a node: ``operation`` of one number of the graph, now ``value``."""
        self.in_python[node] = self._computed(operation, (value,), (operand,))

    def _computed(
        self, operation: Callable[..., Any], operands: tuple[Any, ...], parts: tuple[Any, ...]
    ) -> Computed:
        """The expression as Python computes it. If it may raise, the mock does it before effects.

        Raises:
            Split: the operands exist only inside a branch or an iteration of a loop.
        """
        computed = Computed(operation, tuple(map(self._as_python_computes, parts)))
        if may_raise(operation, operands, parts, self._guards.lower_bounds.bound):
            if self._rec.operators.is_isolated and not is_computable_before_graph(computed):
                raise Split(
                    SplitReason.ISOLATED_EFFECT,
                    f"calls {operation.__name__}, which may raise for other values of a tensor",
                )
            self.may_raise.append(computed)
        return computed

    def _as_python_computes(self, part: Any) -> Any:
        """Python's form of a number that the graph computes: a compiled graph divides by zero
        without an exception."""
        return self.in_python.get(part.node, part) if is_instance(part, GraphNumber) else part

    def _require_selection(self, operation: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """Guard which one of several numbers of different types is selected."""
        goes_before = operator.gt if operation is max else operator.lt
        selected = operands[0]
        for operand in operands[1:]:
            self._guards.require_truth(goes_before, (operand, selected))
            selected = operand if goes_before(operand, selected) else selected

    def _require_type_of_power(self, base: Any, exponent: Any, *_: Any) -> None:
        """Guard the signs: they decide if powers of integers are integers, and others real."""
        is_exponent_lifted = self._identities.is_lifted(exponent)
        if type(base) is type(exponent) is int:
            if is_exponent_lifted:
                self._guards.require_truth(operator.ge, (exponent, 0))
        elif is_exponent_lifted or exponent != int(exponent):
            self._guards.require_truth(operator.ge, (base, 0))

    def _require_no_division_by_zero(
        self, operation: Callable[..., Any], operands: tuple[Any, ...]
    ) -> None:
        """Guard that a divisor known at entry is not 0: the program may catch the exception."""
        if operation not in _DIVISIONS or not is_number(operands[0]):
            return
        divisor = self._identities.expression(operands[1])
        if divisor is not None and is_computable_at_entry(divisor):
            self._guards.require_truth(operator.ne, (operands[1], 0))

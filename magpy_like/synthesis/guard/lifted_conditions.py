"""Sizes and numbers that may vary: what the program, and the backend, found out about them.

They are all that is asked of such a number, so a record serves every call for which they hold; what
its operator graph computes may depend on the number in no other way.
"""

from __future__ import annotations

from typing import Any

from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import Address, Size, leaves_of
from magpy_like.monitor.symbolic.symbolic_twin import SymbolicTwin
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, ShadowNode
from magpy_like.synthesis import number_source
from magpy_like.synthesis.generated_source import literal
from magpy_like.synthesis.guard.access_places import Places
from magpy_like.synthesis.guard.expected_values import Expected, expected
from magpy_like.synthesis.guard.fetched_variables import FetchedVariables
from magpy_like.synthesis.guard.guard_writer import GONE, describe_tensor
from magpy_like.synthesis.guard.size_conditions import LARGEST, Bounds, size_guards


class LiftedConditions(FetchedVariables):
    """Conditions about numbers that may be others at later calls."""

    def __init__(self, rec: Recording, places: Places) -> None:
        super().__init__(rec, places)
        self.lifted: list[str] = []
        """Sizes and numbers that may vary, in words."""
        self.expected = Expected()

    def conditions(self) -> None:
        """Lifted numbers that the program has looked at must give the same again.

        The backend has been at work by now: it may look at sizes as well.
        """
        self.expected = expected(self.rec, self.places)
        self.expected.names = {
            self.expected.places[node.node_id]: self.label(node)
            for node in self.places.order
            if node.node_id in self.expected.places
        }
        said = len(self.readable)
        if self.rec.twin is not None:
            self._sizes(self.rec.twin)
        for number, value in self.rec.lifted.conditions:
            if is_instance(number, Address) and self.places.is_fixed(number.node):
                continue  # the record holds the very object
            way = number_source.text(number, self.name_of_number, self.source.constant)
            words = number_source.text(number, self.label, repr)
            self._check(self._equals(way, value), f"{words} == {value!r}")
        self.expected.conditions += map(_of_places, self.rec.lifted.conditions)
        self.expected.about_lifted.update(self.readable[said:], self._about_lifted)
        for node in self.places.order:
            varies = self.expected.places.get(node.node_id) in self.expected.lifted
            if varies or node.node_id in self.rec.list_values:
                self.lifted.append(self.label(node))

    def _sizes(self, twin: SymbolicTwin) -> None:
        bounds, conditions = size_guards(twin)
        free: dict[int, dict[int, Bounds]] = {}
        for bound in bounds:
            if is_instance(bound.number, Size):
                node = bound.number.node
                free.setdefault(node.node_id, {})[bound.number.dim] = bound
                if bound.varies:
                    self.lifted.append(f"{self.label(node)}.size({bound.number.dim})")
                twin.checks[node.node_id].allow(bound.number.dim, bound.least, bound.most)
            else:
                self._bound(bound)
        for reason, sentence, node in self._dynamic:
            gone = node.variable is None
            described = GONE if gone else describe_tensor(node.variable, free[node.node_id])
            self.reasons[reason] = self.readable[sentence] = f"{self.label(node)}: {described}"
            self.expected.about_lifted.add(self.readable[sentence])
            place = self.expected.places[node.node_id]
            self.expected.inner[place] = twin.inner_dims[node.node_id]
            for dim, bound in free[node.node_id].items():
                if not bound.varies:
                    self.expected.reasons[place, dim] = bound.reason
            self.expected.free[place] = {
                dim: (bound.least, bound.most) for dim, bound in free[node.node_id].items()
            }
        for condition in conditions:
            way = number_source.text(condition, self.name_of_number, self.source.constant)
            self._check(way, number_source.text(condition, self.label, repr))
            self.expected.conditions.append((condition, True))

    def _bound(self, bound: Bounds) -> None:
        node = bound.number.node
        if Fact.VALUE in node.facts:
            return
        self.expected.bounds[self.expected.places[node.node_id]] = bound.least, bound.most
        name = self.name(node)
        if bound.least > -LARGEST:
            self._check(f"{name} >= {bound.least}", f"{self.label(node)} >= {bound.least}")
        if bound.most < LARGEST:
            self._check(f"{name} <= {bound.most}", f"{self.label(node)} <= {bound.most}")

    def name_of_number(self, node: ShadowNode) -> str:
        """A lifted number that was looked at as a whole as well is a constant after all."""
        if Fact.VALUE in node.facts:
            return literal(node.first.value) or self.source.constant(node.first.value, "value")
        return self.name(node)


def _of_places(condition: tuple[Any, Any]) -> tuple[Any, Any]:
    """A condition as other records can be held to it. Where an object lies says nothing of theirs,
    and the record must not keep it alive."""
    number, value = condition
    told = any(is_instance(part, Address) for part in leaves_of(number))
    return (None if told else number), value

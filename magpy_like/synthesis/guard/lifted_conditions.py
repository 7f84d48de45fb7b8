"""Conditions on lifted values: bounds of sizes, strides and numbers, and expressions over them.

Program and backend relied on no more than these about a lifted value, so the record serves every
call for which they hold; its operator graph depends on the value in no other way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magpy_like.monitor.symbolic.expressions import Address, EntryValue, Size, leaves_of
from magpy_like.monitor.symbolic.numbers.cached_look_ups import depends_on_look_up
from magpy_like.monitor.symbolic.symbolic_twin import SymbolicTwin
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, ShadowNode
from magpy_like.synthesis import number_source
from magpy_like.synthesis.generated_source import Source, literal
from magpy_like.synthesis.guard.conditions import Condition, Kind
from magpy_like.synthesis.guard.expected_values import ExpectedValues, expected_values
from magpy_like.synthesis.guard.guard_writer import REPLACED_TENSOR, GuardWriter, describe_tensor
from magpy_like.synthesis.guard.size_conditions import MAX_SIZE, Bounds, size_guards


class LiftedConditions:
    """Writes the conditions on values that may differ at later calls."""

    def __init__(self, writer: GuardWriter) -> None:
        self._writer, self._rec, self._source = writer, writer.rec, writer.source
        self.lifted: list[str] = []
        """Labels of the lifted sizes, strides and numbers."""
        self.expected = ExpectedValues()
        self._deferred: list[tuple[Any, ...]] | None = []
        """Conditions on results of look-ups, each with the method that writes it; None once the
        guard has made the look-ups."""

    def write(self, dynamic: list[tuple[Condition, ShadowNode]]) -> None:
        """Write the conditions on all lifted values.

        ``dynamic`` are the conditions on tensors whose sizes or strides may vary. The backend has
        compiled by now: it may rely on sizes as well.
        """
        writer, rec = self._writer, self._rec
        self.expected = expected_values(rec, writer.guarded)
        self.expected.names = {
            self.expected.paths[node.node_id]: writer.label(node)
            for node in writer.guarded.order
            if node.node_id in self.expected.paths
        }
        if rec.sizes.twin is not None:
            self.sizes(rec.sizes.twin, dynamic)
        for number, value in rec.lifted.guards.conditions:
            self._write_value(number, value)
        self.expected.conditions += map(_comparable, rec.lifted.guards.conditions)
        for node in writer.guarded.order:
            varies = self.expected.paths.get(node.node_id) in self.expected.lifted
            if varies or node.node_id in rec.reads.list_values:
                self.lifted.append(writer.label(node))

    def write_after_look_ups(self) -> None:
        """Write the conditions on numbers that look-ups return, which the guard has made now."""
        deferred, self._deferred = self._deferred, None
        for write, *arguments in deferred or ():
            write(*arguments)

    def _is_deferred(self, write: Callable[..., None], number: Any, *more: Any) -> bool:
        """True if a condition is about results of look-ups; it is kept for later."""
        if self._deferred is None or not depends_on_look_up(number):
            return False
        self._deferred.append((write, number, *more))
        return True

    def _write_value(self, number: Any, value: Any) -> None:
        writer = self._writer
        if is_instance(number, Address) and writer.guarded.is_fixed(number.node):
            return  # the record holds the very object
        if self._is_deferred(self._write_value, number, value):
            return
        text = number_source.text(number, self.name_of_number, self._source.constant)
        words = number_source.text(number, writer.label, repr)
        test = writer.equality(text, value)
        description = f"{words} == {value!r}"
        writer.check(Kind.LIFTED_VALUE, test, description, is_about_lifted=True)

    def _write_relation(self, relation: Any) -> None:
        if self._is_deferred(self._write_relation, relation):
            return
        text = number_source.text(relation, self.name_of_number, self._source.constant)
        words = number_source.text(relation, self._writer.label, repr)
        self._writer.check(Kind.SIZE_RELATION, text, words, is_about_lifted=True)

    def sizes(self, twin: SymbolicTwin, dynamic: list[tuple[Condition, ShadowNode]]) -> None:
        """Ranges of sizes and strides, which the checks of tensors compare, bounds and
        relations."""
        writer, expected = self._writer, self.expected
        bounds, relations = size_guards(twin)
        dims: dict[int, dict[int, Bounds]] = {}
        strides: dict[int, dict[int, Bounds]] = {}
        for bound in bounds:
            if is_instance(bound.number, EntryValue):
                self._bounds(bound)
                continue
            node, dim = bound.number.node, bound.number.dim
            check, is_size = twin.checks[node.node_id], is_instance(bound.number, Size)
            (dims if is_size else strides).setdefault(node.node_id, {})[dim] = bound
            if bound.varies:
                what = "size" if is_size else "stride"
                self.lifted.append(f"{writer.label(node)}.{what}({dim})")
            (check.set_bounds if is_size else check.set_stride_bounds)(dim, bound.least, bound.most)
        for condition, node in dynamic:
            of_node, steps = dims.get(node.node_id, {}), strides.get(node.node_id, {})
            gone = node.variable is None
            described = REPLACED_TENSOR if gone else describe_tensor(node.variable, of_node, steps)
            condition.description = f"{writer.label(node)}: {described}"
            condition.sentences = (condition.description,)
            condition.is_about_lifted = True
            path = expected.paths[node.node_id]
            expected.inner_dims[path] = twin.inner_dims[node.node_id]
            for dim, bound in of_node.items():
                if not bound.varies:
                    expected.specialized_at[path, dim] = bound.reason
            expected.size_ranges[path] = {dim: (b.least, b.most) for dim, b in of_node.items()}
            expected.stride_ranges[path] = {dim: (b.least, b.most) for dim, b in steps.items()}
        for relation in relations:
            self._write_relation(relation)
            expected.conditions.append(_comparable((relation, True)))

    def _bounds(self, bound: Bounds) -> None:
        node, writer = bound.number.node, self._writer
        if Fact.VALUE in node.facts:
            return
        self.expected.number_ranges[self.expected.paths[node.node_id]] = bound.least, bound.most
        name, label = writer.name(node), writer.label(node)
        for kind, comparison, end, is_bounded in (
            (Kind.LOWER_BOUND, ">=", bound.least, bound.least > -MAX_SIZE),
            (Kind.UPPER_BOUND, "<=", bound.most, bound.most < MAX_SIZE),
        ):
            if is_bounded:
                words = f"{label} {comparison} {end}"
                writer.check(kind, f"{name} {comparison} {end}", words, is_about_lifted=True)

    def name_of_number(self, node: ShadowNode, source: Source | None = None) -> str:
        """The name of a lifted number, or its literal if the program also read it as a whole.

        ``source`` is where it is written, the guard by default: infinities and NaN have no literal,
        but a name there.
        """
        if Fact.VALUE in node.facts:
            source = self._source if source is None else source
            return literal(node.first.value) or source.constant(node.first.value, "value")
        return self._writer.name(node)


def _comparable(condition: tuple[Any, Any]) -> tuple[Any, Any]:
    """A condition to be evaluated for other records: never true if it is about an address, or the
    result of a look-up.

    Another record's object has an address of its own, and the record must not keep it alive. A
    look-up counts.
    """
    number, value = condition
    has_address = any(is_instance(part, Address) for part in leaves_of(number))
    return (None if has_address or depends_on_look_up(number) else number), value

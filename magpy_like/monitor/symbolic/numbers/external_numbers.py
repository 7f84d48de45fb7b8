"""Lifted numbers read from outside the region: entry values of external variables.

The guard checks their types only, so the value may differ at the next call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magpy_like.monitor.objects.object_replacement import OriginalNumbers
from magpy_like.monitor.symbolic.expressions import EntryValue
from magpy_like.monitor.symbolic.numbers.lifted_identities import LiftedIdentities
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, ShadowNode

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording


class ExternalNumbers:
    """The external variables whose numbers are lifted, and the original objects."""

    def __init__(
        self, rec: Recording, identities: LiftedIdentities, originals: OriginalNumbers
    ) -> None:
        """``originals`` maps the new objects of lifted numbers to the external ones."""
        self._rec, self._identities, self._originals = rec, identities, originals
        self.nodes: set[int] = set()
        """Ids of the ShadowNodes whose numbers are lifted at every read."""
        self._entry_values: dict[int, EntryValue] = {}

    def lift(self, node: ShadowNode, value: Any) -> Any:
        """A new object for the number of an external variable.

        An operator that reads it runs uncompiled: its code reads the number of each call.
        """
        if self._rec.running.depth:
            self._rec.running.as_is = "an operator reads a number that differs between calls"
        number = self._identities.lift(value, *self._entry_value(node, value))
        self._originals.note(number, value)
        return number

    def register_argument(self, value: Any, node: ShadowNode) -> None:
        """Register an argument whose object is already distinct from all others."""
        self._identities.register(value, *self._entry_value(node, value))

    def register_array(self, value: Any, node: ShadowNode) -> None:
        """Know an external NumPy array, from which the mock computes before the operator graph
        runs. No operator may change it then, through a tensor that shares its memory."""
        self._identities.register_object(value, EntryValue(node))
        self._rec.operators.shared_arrays.append((value, value.copy()))

    def original(self, value: Any) -> Any:
        """The object that a lifted number, of this or an earlier recording, replaces; any other
        value itself."""
        return self._originals.original(value)

    def is_entry_value(self, value: Any, node: ShadowNode) -> bool:
        """True if ``value`` is the object of the lifted number of this external variable."""
        expression = self._identities.expression(value)
        return is_instance(expression, EntryValue) and expression.node is node

    def _entry_value(self, node: ShadowNode, value: Any) -> tuple[EntryValue, Any]:
        """The expression and the twin of the number at a node; no fact about its value remains."""
        if node.node_id not in self.nodes:
            self.nodes.add(node.node_id)
            node.facts.discard(Fact.VALUE)
            node.facts.add(Fact.TYPE)
        entry, twin = self._entry_values.get(node.node_id), self._rec.sizes.twin
        if entry is None:
            entry = self._entry_values[node.node_id] = EntryValue(node)
            if twin is not None and type(value) is int:
                twin.add_number(entry, value, size=False)
        return entry, twin.numbers.get(entry) if twin is not None else None

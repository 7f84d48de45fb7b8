"""Locations in objects that iterations write to, in the record.

A loop carries the values there like those of its local variables.
"""

from __future__ import annotations

from typing import Any

from magpy_like.annotation import RelationKind, ValueRead
from magpy_like.monitor.context import Context
from magpy_like.monitor.objects.attributes import attribute_location
from magpy_like.monitor.objects.loop_written_locations import Location
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.refgraph import Relation, ShadowNode


def read(context: Context, location: Location) -> Any:
    """Read the value there from before the loop. An external number is lifted, since it is about to
    change.

    Raises:
        Split: the record cannot guard it.
    """
    value, rec = location.get(), context.recording
    node, relation = _edge(rec, location)
    if node is None:
        return value
    rec.reads.record(node, relation, value)
    rec.inspections.visit(value, ValueRead.ALL)
    lifted = varying_reads.lift_element(context, node, relation, value, is_updated=True)
    return value if lifted is None else lifted


def begin(rec: Recording, location: Location) -> None:
    """Record that the iterations are about to overwrite the value there.

    Raises:
        Split: a finalizer observes the end of that value.
    """
    node, relation = _edge(rec, location)
    if node is not None:
        rec.mutations.lose(node, relation)


def end(rec: Recording, location: Location) -> None:
    """Record the value that the iterations have left there."""
    node, relation = _edge(rec, location)
    if node is not None:
        rec.mutations.put(node, relation, location.get())


def _edge(rec: Recording, location: Location) -> tuple[ShadowNode | None, Relation]:
    """The location's relation in the RefGraph, and the variable that it starts from; None instead
    of the variable for an object that the program has created."""
    owner, relation = location.owner, location.relation
    if relation.kind is RelationKind.ATTRIBUTE:
        return attribute_location(rec, owner, str(relation.key))
    if relation.kind is RelationKind.GLOBAL:
        return rec.variables.constant(owner), relation
    return rec.variables.node(owner), relation

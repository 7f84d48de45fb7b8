"""Places of objects that the rounds of a loop write to, as the record knows them.

A loop hands on what is there as it hands on what its local variables hold: see `rounds`.
"""

from __future__ import annotations

from typing import Any

from magpy_like.annotation import RelationKind, ValueRead
from magpy_like.monitor.objects.attributes import entry_of
from magpy_like.monitor.objects.loop_written_places import Holder
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.run import MonitorRun
from magpy_like.refgraph import Relation, ShadowNode


def read(run: MonitorRun, place: Holder) -> Any:
    """What the program has there: a number from outside is lifted, as it is about to change.

    Raises:
        Split: the record cannot rely on it.
    """
    value, rec = place.get(), run.recording
    node, relation = _edge(rec, place)
    if node is None:
        return value
    rec.reads.record(node, relation, value)
    rec.inspections.visit(value, ValueRead.ALL)
    lifted = run.lift_element(node, relation, value, is_updated=True)
    return value if lifted is None else lifted


def begin(rec: Recording, place: Holder) -> None:
    """The program is about to go through rounds that write there.

    Raises:
        Split: the end of what is there is noticed.
    """
    node, relation = _edge(rec, place)
    if node is not None:
        rec.mutations.lose(node, relation)


def end(rec: Recording, place: Holder) -> None:
    """What the program has there now, the rounds have left."""
    node, relation = _edge(rec, place)
    if node is not None:
        rec.mutations.put(node, relation, place.get())


def _edge(rec: Recording, place: Holder) -> tuple[ShadowNode | None, Relation]:
    """Where the record knows a place; no node where the program has made the object."""
    owner, relation = place.owner, place.relation
    if relation.kind is RelationKind.ATTRIBUTE:
        return entry_of(rec, owner, str(relation.key))
    if relation.kind is RelationKind.GLOBAL:
        return rec.variables.constant(owner), relation
    return rec.variables.node(owner), relation

"""Numbers that the program reads from outside and that vary between calls: they are lifted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import RelationKind, ValueRead
from magpy_like.bytecode.code_facts import in_place_reads
from magpy_like.monitor.instructions.step import Step
from magpy_like.monitor.objects.containers import elements
from magpy_like.monitor.symbolic.expressions import (
    Size,
    is_liftable,
    is_number,
    is_number_or_flag,
    leaves_of,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ABSENT, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import is_plain

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun


def can_vary(value: Any) -> bool:
    """Whether a number or text from outside may be another one, and other than itself: NaN is found
    in a list by which object it is."""
    return is_liftable(value) and bool(value == value)


def varies(run: MonitorRun, node: ShadowNode, relation: Relation) -> bool:
    """Whether the number at a place outside has varied between calls."""
    return run.recording.variables.location(node, relation) in run.varying.numbers


def has_varied(run: MonitorRun, numbers: Iterable[Any]) -> bool:
    """Whether one of these numbers is another one at other calls, for all that is known: with
    ``dynamic=True`` sizes are lifted before they have differed."""
    return any(
        not is_instance(part, Size)
        or run.varying.has_varied(run.recording.variables.path(part.node), part.dim)
        for number in numbers
        for part in leaves_of(run.lifted.expression(number))
    )


def lift_element(
    run: MonitorRun, node: ShadowNode, relation: Relation, value: Any, *, is_updated: bool = False
) -> Any:
    """The number to put in place of one that was read just now; None for that one itself.

    ``is_updated`` says that the program is about to put another one there."""
    if not is_number(value) or relation in node.written or node.rewritten:
        return None
    if run.recording.reads.filled.covers(node, relation):
        return None
    if not (is_updated or varies(run, node, relation)) or not can_vary(value):
        return None
    target = node.first.refs.get(relation, ABSENT)
    if target == ABSENT or not (child := run.recording.refs.get_node_by_id(target)).existed:
        return None
    if not _let_vary(run, child):
        return None
    run.watch_numbers()
    return run.lifted.external.lift(child, value)


def substitute(run: MonitorRun, value: Any, deep: bool = False) -> None:
    """Native code is about to go through a container, should this be one from outside: numbers in
    it that vary are lifted, and it hands out their objects. ``deep`` says that it looks into what
    is inside, too."""
    if not run.varying.numbers or type(value) not in _SUBSTITUTED_IN:
        return
    rec = run.recording
    node = rec.variables.node(value)
    if node is not None and not node.changed and not rec.inspections.counts_vary(node):
        kind = RelationKind.KEY if type(value) is dict else RelationKind.ITEM
        for key, item in [*value.items()] if type(value) is dict else enumerate(value):
            if not (is_number(item) and is_plain(key)):
                continue
            relation = Relation(kind, key)
            if varies(run, node, relation):
                target = node.first.refs.get(relation)
                if target is None or Fact.VALUE not in rec.refs.get_node_by_id(target).facts:
                    rec.reads.record(node, relation, item)
                    number = lift_element(run, node, relation, item)
                    if number is not None:
                        run.found.substitute(value, key, number)
    if deep and any(type(item) in _SUBSTITUTED_IN for item in elements(value)):
        rec.inspections.visit(value, ValueRead.ELEMENTS)
        for item in elements(value):
            substitute(run, item, deep)


_SUBSTITUTED_IN = (list, tuple, dict)


def _let_vary(run: MonitorRun, node: ShadowNode) -> bool:
    """Rely no more on a number that was read just now; False if something else does."""
    if node.node_id not in run.recording.reads.just_read:
        return False
    run.recording.reads.just_read.discard(node.node_id)
    node.facts.discard(Fact.VALUE)
    return True


def lift_read(
    run: MonitorRun, step: Step, node: ShadowNode | None, relation: Relation, value: Any
) -> Any:
    """Whether a number that is about to be read is lifted: what to do when it was.

    It is when it varied between calls, or when the program is about to change it in place,
    as in ``self.step += 1``.
    """
    if node is None or not is_number_or_flag(value):
        return None
    if (
        relation in node.written
        or node.rewritten
        or run.recording.reads.filled.covers(node, relation)
    ):
        return None
    target = node.first.refs.get(relation)
    if target is None or target == ABSENT:
        return None
    child = run.recording.refs.get_node_by_id(target)
    if not child.existed or not child.plain:
        return None
    if type(value) is bool:
        if not varies(run, node, relation) or not _let_vary(run, child):
            return None
        return run.flags.read(run, step, child, value)
    lifted = child.node_id in run.lifted.external.nodes
    if lifted or varies(run, node, relation) or _is_updated(run, step):
        return (_finish_lift, (child, value)) if _let_vary(run, child) else None
    return None


def _is_updated(run: MonitorRun, step: Step) -> bool:
    """Whether the value read by this instruction goes into an in-place operator next."""
    code = step.code
    found = run.updates.get(code)
    if found is None:
        found = run.updates[code] = in_place_reads(code)
    return step.offset in found


def _finish_lift(run: MonitorRun, payload: tuple[ShadowNode, Any], result: Any) -> Any:
    node, value = payload
    if result is value:
        return run.lifted.external.lift(node, value)
    node.facts.add(Fact.VALUE)  # something else has computed the result
    return None

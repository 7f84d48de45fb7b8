"""Reads of external numbers that vary between calls: they are lifted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import RelationKind, ValueRead
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
    from magpy_like.monitor.context import Context


def can_vary(value: Any) -> bool:
    """True if an external number or text can be lifted. NaN cannot: it differs from itself, and
    lists look it up by identity."""
    return is_liftable(value) and bool(value == value)


def varies(context: Context, node: ShadowNode, relation: Relation) -> bool:
    """True if the number at an external location has varied between calls."""
    return context.recording.variables.location(node, relation) in context.varying.numbers


def has_varied(context: Context, numbers: Iterable[Any]) -> bool:
    """True if one of these numbers is known to vary between calls.

    With ``dynamic=True`` sizes are lifted before they have differed.
    """
    return any(
        not is_instance(part, Size)
        or context.varying.has_varied(context.recording.variables.path(part.node), part.dim)
        for number in numbers
        for part in leaves_of(context.lifted.expression(number))
    )


def lift_element(
    context: Context, node: ShadowNode, relation: Relation, value: Any, *, is_updated: bool = False
) -> Any:
    """The lifted number that replaces a number just read; None if it is not lifted.

    ``is_updated``: the program is about to store another number at the location.
    """
    if not is_number(value) or relation in node.written or node.rewritten:
        return None
    if context.recording.reads.substituted.covers(node, relation):
        return None
    if not (is_updated or varies(context, node, relation)) or not can_vary(value):
        return None
    target = node.first.refs.get(relation, ABSENT)
    if target == ABSENT or not (child := context.recording.refs.get_node_by_id(target)).existed:
        return None
    if not _let_vary(context, child):
        return None
    context.watch_numbers()
    return context.lifted.external.lift(child, value)


def substitute(context: Context, value: Any, deep: bool = False) -> None:
    """Replace the varying numbers in an external container by lifted ones: native code is about to
    iterate over it, and returns their objects. ``deep``: it reads nested containers, too."""
    if not context.varying.numbers or type(value) not in _SUBSTITUTED_IN:
        return
    rec = context.recording
    node = rec.variables.node(value)
    if node is not None and not node.changed and not rec.inspections.counts_vary(node):
        kind = RelationKind.KEY if type(value) is dict else RelationKind.ITEM
        for key, item in [*value.items()] if type(value) is dict else enumerate(value):
            if not (is_number(item) and is_plain(key)):
                continue
            relation = Relation(kind, key)
            if varies(context, node, relation):
                target = node.first.refs.get(relation)
                if target is None or Fact.VALUE not in rec.refs.get_node_by_id(target).facts:
                    rec.reads.record(node, relation, item)
                    number = lift_element(context, node, relation, item)
                    if number is not None:
                        context.originals.substitute(value, key, number)
    if deep and any(type(item) in _SUBSTITUTED_IN for item in elements(value)):
        rec.inspections.visit(value, ValueRead.ELEMENTS)
        for item in elements(value):
            substitute(context, item, deep)


_SUBSTITUTED_IN = (list, tuple, dict)


def _let_vary(context: Context, node: ShadowNode) -> bool:
    """Drop the guard on a number just read; False if the guard has another reason."""
    if node.node_id not in context.recording.reads.just_read:
        return False
    context.recording.reads.just_read.discard(node.node_id)
    node.facts.discard(Fact.VALUE)
    return True


def lift_read(
    context: Context, step: Step, node: ShadowNode | None, relation: Relation, value: Any
) -> Any:
    """The token of a read that lifts its number or flag; None for any other read.

    A number is lifted if it has varied between calls, or if the program is about to change it in
    place, as in ``self.step += 1``.
    """
    if node is None or not is_number_or_flag(value):
        return None
    if (
        relation in node.written
        or node.rewritten
        or context.recording.reads.substituted.covers(node, relation)
    ):
        return None
    target = node.first.refs.get(relation)
    if target is None or target == ABSENT:
        return None
    child = context.recording.refs.get_node_by_id(target)
    if not child.existed or not child.plain:
        return None
    if type(value) is bool:
        if not varies(context, node, relation) or not _let_vary(context, child):
            return None
        return context.flags.read(context, step, child, value)
    lifted = child.node_id in context.lifted.external.nodes
    if lifted or varies(context, node, relation) or _is_updated(context, step):
        return (_finish_lift, (child, value)) if _let_vary(context, child) else None
    return None


def _is_updated(context: Context, step: Step) -> bool:
    """True if an in-place operator consumes the value that this instruction reads."""
    return context.is_updated_in_place(step)


def _finish_lift(context: Context, payload: tuple[ShadowNode, Any], result: Any) -> Any:
    node, value = payload
    if result is value:
        return context.lifted.external.lift(node, value)
    node.facts.add(Fact.VALUE)  # another object is the result
    return None

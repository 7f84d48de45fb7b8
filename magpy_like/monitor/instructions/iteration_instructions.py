"""Iteration: the heads of loops, their next elements, and unpacking.

A record relies on the elements taken from an external iterator, and on no others.
"""

from __future__ import annotations

import opcode
import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor import random_draws
from magpy_like.monitor.calls import read_calls
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.containers import NATIVE_TYPES
from magpy_like.monitor.objects.iterators import (
    ARRAY_ITERATOR,
    SINGLE,
    are_independent,
    container_iterators,
    container_of,
    external_advance_split,
    is_native_iterator,
    is_started_before,
    peek,
    peekable_node,
)
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.lists import loop_ranges
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import frame_set_operand
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def iterate(context: Context, step: Step) -> Token:
    """``iter(value)`` at the head of a loop, an unpacking or a ``yield from``."""
    rec = context.recording
    value = step.stack[-1]
    rows = is_instance(value, torch.Tensor) or id(value) in rec.operators.lists
    if rows and loop_ranges.begin_loop(context, step, iter, (value,), {}):
        return None
    rec.operators.inspect_list(value)
    if opcode.opname[step.opcode] == "GET_ITER" and (
        peekable_node(rec, value) is not None or random_draws.yields_drawn_numbers(context, value)
    ):
        context.watch_iterators()
        return None
    if not is_plain(value) and not is_instance(value, torch.Tensor):
        if type(value) not in NATIVE_TYPES:
            getter = class_lookup.read_class(rec, type(value), "__iter__")
            if is_instance(getter, types.FunctionType):
                return None
        varying_reads.substitute(context, value)
        read_calls.iterate(rec, value)
    return None


def advance(context: Context, step: Step) -> Token:
    """Record a read of the next element of a loop's iterator.

    Raises:
        Split: the iterator is external, and its next element cannot be read without advancing it.
    """
    rec = context.recording
    iterator = step.stack[-1]
    if is_started_before(rec, iterator):
        raise Split(SplitReason.GENERATOR_SUSPENDED, "resumes an external generator")
    if context.branching is not None:
        context.branching.at_loop_head(context, step)
    if type(iterator) is ARRAY_ITERATOR:
        _, (array, *_), *at = iterator.__reduce__()
        if at and random_draws.yields_drawn_numbers(context, array) and at[0] < len(array):
            return random_draws.repeat_array_call(context, operator.getitem, (array, at[0]), {})
    node = peekable_node(rec, iterator)
    if node is None:
        if rec.variables.node(iterator) is not None and is_native_iterator(iterator):
            raise external_advance_split(iterator)
        return None
    if not are_independent(iterator):
        raise Split(
            SplitReason.ITERATOR_STATE,
            "advances an external iterator over several elements of another one at a time",
        )
    for inner in container_iterators(iterator):
        container = rec.variables.node(container_of(inner)) if type(inner) in SINGLE else None
        if container is not None and container.changed:
            raise Split(
                SplitReason.ITERATOR_STATE,
                "advances an external iterator over a container that it has changed",
            )
    taken = rec.effects.advanced_iterators.get(node.node_id, 0)
    relation = Relation(RelationKind.ITERATION, taken)
    if peek(iterator, 0) is not NOTHING:
        return _finish_advance, (node, relation)
    rec.effects.advanced_iterators[node.node_id] = taken + 1
    rec.reads.record_absent(node, relation)
    return None


def _finish_advance(context: Context, taken: tuple[ShadowNode, Relation], element: Any) -> Any:
    node, relation = taken
    rec = context.recording
    rec.effects.advanced_iterators[node.node_id] = (
        rec.effects.advanced_iterators.get(node.node_id, 0) + 1
    )
    rec.reads.record(node, relation, element)
    return varying_reads.lift_element(context, node, relation, element)


def unpack(context: Context, step: Step) -> Token:
    """``a, b = source``: numbers that vary are lifted; otherwise all elements are read."""
    rec = context.recording
    source = step.stack[-1]
    node = rec.variables.node(source)
    if node is None or type(source) not in (tuple, list) or node.changed:
        return iterate(context, step)
    relations = [Relation(RelationKind.ITEM, i) for i in range(len(source))]
    if len(source) != step.oparg or not any(
        varying_reads.varies(context, node, r) for r in relations
    ):
        return iterate(context, step)
    rec.inspections.inspect_length(node)
    for relation, item in zip(relations, source, strict=True):
        rec.reads.record(node, relation, item)
    return _finish_unpack, (step.frame, node, relations, tuple(source))


def _finish_unpack(context: Context, unpacked: Any, top: Any) -> None:
    frame, node, relations, items = unpacked
    for i, (relation, item) in enumerate(zip(relations, items, strict=True)):
        number = varying_reads.lift_element(context, node, relation, item)
        if number is not None:
            frame_set_operand(frame, i + 1, number)

"""Calls whose result is an existing variable: reads along a relation (section 5.3.1)."""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import (
    Annotation,
    RelationKind,
    RelationProperty,
    ValueRead,
    lookup,
)
from magpy_like.monitor.calls import special_methods
from magpy_like.monitor.objects import attributes, class_lookup, object_addresses
from magpy_like.monitor.objects.containers import CONTAINERS, DICT_VIEWS
from magpy_like.monitor.objects.iterators import external_advance_split
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import REFERENT, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording


def inputs_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[int | str, Any]]:
    """The arguments of a call with their positions and keywords."""
    return [*enumerate(args), *kwargs.items()]


NOT_GIVEN = object()


def resolve_relation(
    relation: RelationProperty, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """The owner, key and value of a relation among the arguments; ``NOT_GIVEN`` for absent ones."""
    inputs: dict[Any, Any] = dict(inputs_of(args, kwargs))
    positions = (relation.of, relation.key, relation.value)
    return tuple(inputs.get(p, NOT_GIVEN) for p in positions)


ATTRIBUTES = (RelationKind.ATTRIBUTE, RelationKind.HAS_ATTRIBUTE)


def record_read_call(
    context: Context, annotation: Annotation, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Record the read of an existing variable, by the relation that the annotation declares."""
    rec = context.recording
    relation = annotation.output.relation
    assert relation is not None
    source, key, _ = resolve_relation(relation, args, kwargs)
    if source is None or source is NOT_GIVEN:
        return
    if relation.kind is RelationKind.CONTEXT:
        rec.reads.record_context_variable(source)
    elif relation.kind is RelationKind.DICT:
        attributes.read_attribute(rec, source, "__dict__")
    elif relation.kind is RelationKind.CELL and is_instance(source, types.CellType):
        cell = rec.variables.node(source)
        if cell is not None:
            try:
                rec.reads.record(cell, Relation(RelationKind.CELL), source.cell_contents)
            except ValueError:
                rec.reads.record_absent(cell, Relation(RelationKind.CELL))
    elif relation.kind is RelationKind.SLOT:
        _read_native_slot(rec, source, annotation.operation.rpartition(".")[2])
    elif relation.kind in ATTRIBUTES and key is not NOT_GIVEN:
        name = key
        if is_instance(name, str):
            if is_instance(source, torch.Tensor):
                # Attributes of all tensors are descriptors of the class, others dictionary entries.
                if not is_instance(lookup_in_type(type(source), name), types.GetSetDescriptorType):
                    context.read_tensor_attribute(source, name)
            elif annotation.operation.endswith("object.__getattribute__"):
                attributes.read_by_default_rules(rec, source, name)
            else:
                attributes.read_attribute(rec, source, name)
    elif relation.kind in (RelationKind.ITEM, RelationKind.KEY) and key is not NOT_GIVEN:
        read_item(rec, source, key)
    elif relation.kind is RelationKind.MEMBERSHIP and key is not NOT_GIVEN:
        read_membership(rec, source, key)
    elif relation.kind in (RelationKind.ITERATION, RelationKind.ELEMENT, RelationKind.COPY):
        iterate(rec, source)
    elif relation.kind is RelationKind.LENGTH:
        rec.inspections.visit(source, ValueRead.LENGTH)


def location_of_number(
    rec: Recording,
    relation: RelationProperty,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[ShadowNode, Relation] | None:
    """The location from which a call has read a number, if a number there can be lifted."""
    source, key, _ = resolve_relation(relation, args, kwargs)
    location: tuple[ShadowNode | None, Relation] | None = None
    if relation.kind is RelationKind.ATTRIBUTE and not is_instance(source, torch.Tensor):
        location = attributes.locate_number(rec, source, key)[:2]
    elif relation.kind in (RelationKind.KEY, RelationKind.ITEM) and is_instance(source, dict):
        location = rec.variables.node(source), Relation(RelationKind.KEY, rec.variables.key(key))
    elif relation.kind is RelationKind.ITEM and is_instance(source, list) and type(key) is int:
        index = key if key >= 0 else key + list.__len__(source)
        location = rec.variables.node(source), Relation(RelationKind.ITEM, index)
    return None if location is None or location[0] is None else (location[0], location[1])


def _read_native_slot(rec: Recording, source: Any, name: str) -> None:
    """Record the read of a slot of a native class.

    Raises:
        Split: only a weak reference leads to the object, so a guard must not hold it.
    """
    if is_instance(source, weakref.ref):
        rec.mutations.check_none_lost()
    node = rec.variables.node(source)
    if node is None:
        if is_instance(source, torch.Tensor):
            raise Split(
                SplitReason.AUTOGRAD_GRAPH, "reads the gradient or base of an intermediate tensor"
            )
        return
    if is_instance(source, weakref.ref) and name == "__call__":
        found, name = source(), REFERENT
        is_reachable = (
            is_plain(found) or is_identity(found) or rec.variables.node(found) is not None
        )
        if not (is_reachable or rec.variables.is_new_object(found)):
            raise Split(
                SplitReason.WEAK_REFERENCE, "reaches an object through a weak reference only"
            )
    else:
        found = getattr(source, name, NULL)
    if found is NULL:
        rec.reads.record_absent(node, Relation(RelationKind.SLOT, name))
    else:
        rec.reads.record(node, Relation(RelationKind.SLOT, name), found)


def read_item(rec: Recording, source: Any, key: Any) -> None:
    """Record ``source[key]`` for a class, and for an external built-in container."""
    read_item_methods(rec, source)
    source = rec.inspections.unwrap_proxy(source)
    node = rec.variables.node(source)
    if node is None:
        return
    if is_instance(source, dict):
        relation = Relation(RelationKind.KEY, rec.inspections.key_in(node, key))
        if dict.__contains__(source, key):
            rec.reads.record(node, relation, dict.__getitem__(source, key))
        else:
            rec.reads.record_absent(node, relation)
            missing = getattr(type(source), "__missing__", None)
            if missing is not None and lookup(missing):
                rec.mutations.rewrite(node)
    elif is_instance(source, list | tuple) and is_instance(key, int):
        base: Any = list if is_instance(source, list) else tuple
        size = base.__len__(source)
        if -size <= key < 0 and rec.inspections.counts_vary(node):
            if rec.inspections.is_added(node, key):
                return
            if not node.changed:
                rec.reads.record(
                    node, Relation(RelationKind.ITEM, key), base.__getitem__(source, key)
                )
                return
        if not 0 <= key < size:
            rec.inspections.inspect_length(node)
            key += size
        if 0 <= key < size:
            rec.reads.record(node, Relation(RelationKind.ITEM, key), base.__getitem__(source, key))
    else:
        rec.reads.record_contents(node)


def read_item_methods(rec: Recording, source: Any) -> None:
    """Record the look-ups of the methods that native code may call for ``source[key]``."""
    kind = type(source)
    if is_instance(source, type):
        for cls, name in (
            (kind, "__getitem__"), (source, "__class_getitem__"), (kind, "__class_getitem__"),
        ):  # fmt: skip
            class_lookup.read_class(rec, cls, name)
    elif is_instance(source, dict) and kind is not dict:
        class_lookup.read_class(rec, kind, "__missing__")


def read_membership(rec: Recording, source: Any, key: Any) -> None:
    """Record ``key in source``: a read of one key of a mapping, or of all elements otherwise."""
    source = rec.inspections.unwrap_proxy(source)
    node = rec.variables.node(source)
    if node is None:
        return
    if is_instance(source, dict):
        relation = Relation(RelationKind.MEMBERSHIP, rec.inspections.key_in(node, key))
        if Relation(RelationKind.KEY, relation.key) in node.written and not node.rewritten:
            return  # the program itself has stored or deleted the entry
        if node.contents is not None:
            rec.reads.record_contents(node)
        elif dict.__contains__(source, key):
            rec.refs.read(node, relation, True, plain=True).facts.add(Fact.VALUE)
        else:
            rec.reads.record_absent(node, relation)
    else:
        rec.inspections.visit(source, ValueRead.ALL)


def iterate(rec: Recording, source: Any) -> None:
    """Record that a call iterates over ``source``.

    Raises:
        Split: it is an external iterator, whose state no guard can check.
    """
    if is_plain(source) or is_instance(source, torch.Tensor):
        return
    source = rec.inspections.unwrap_proxy(source)
    special_methods.read_special_methods_of_class(rec, type(source))
    object_addresses.guard_set_order(rec, source)
    node = rec.variables.node(source)
    if node is None:
        return
    if is_instance(source, CONTAINERS):
        rec.reads.record_contents(node)
    elif is_instance(source, DICT_VIEWS):
        raise Split(SplitReason.ITERATOR_STATE, "iterates over an external view of a dictionary")
    elif hasattr(type(source), "__next__") and not is_instance(
        lookup_in_type(type(source), "__next__"), types.FunctionType
    ):
        raise external_advance_split(source)
    elif not is_instance(lookup_in_type(type(source), "__iter__"), types.FunctionType):
        rec.inspections.visit(source, ValueRead.ALL)

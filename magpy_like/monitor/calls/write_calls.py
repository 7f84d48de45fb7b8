"""Calls that store or delete one value at one location, such as ``object.__setattr__``."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import Annotation, RelationKind
from magpy_like.monitor.calls.read_calls import NOT_GIVEN, resolve_relation
from magpy_like.monitor.objects import attributes
from magpy_like.monitor.recording import Recording
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def record_write(
    context: Context, annotation: Annotation, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Record a write along the relation that the annotation declares.

    Returns:
        False if the general rules for native calls have to record the write.

    Raises:
        Split: the key depends on a number that is unknown before the region runs.
    """
    rec = context.recording
    declared = annotation.output.relation
    assert declared is not None
    target, key, value = resolve_relation(declared, args, kwargs)
    stores = value is not NOT_GIVEN
    if declared.kind is RelationKind.ATTRIBUTE or not is_instance(target, torch.Tensor):
        context.lifted.specialize(key)  # an index of a tensor stays lifted for its operator
    if is_instance(target, contextvars.ContextVar):
        variable, relation = rec.variables.constant(target), Relation(RelationKind.CONTEXT)
        if relation not in variable.first.refs:
            rec.reads.record_context_variable(target)
        rec.mutations.store(variable, relation, value)
        return True
    if is_instance(target, torch.Tensor) and is_instance(key, str):
        context.write_tensor_attribute(target, key, value)
        return True
    if is_instance(target, torch.Tensor) or target is None or target is NOT_GIVEN:
        return False
    if declared.kind is RelationKind.ATTRIBUTE:
        return _write_attribute(rec, annotation, target, key, value)
    node = rec.variables.node(target)
    if node is None:
        return True
    if declared.kind is RelationKind.KEY and is_instance(target, dict):
        relation = Relation(RelationKind.KEY, rec.inspections.key_in(node, key))
    elif declared.kind is RelationKind.CELL:
        relation = Relation(RelationKind.CELL)
    else:
        return False
    if stores:
        rec.mutations.store(node, relation, value)
    else:
        rec.mutations.remove(node, relation)
    return True


def _write_attribute(
    rec: Recording, annotation: Annotation, target: Any, name: Any, value: Any
) -> bool:
    """Record a write of an attribute.

    ``setattr`` and ``delattr`` look up a method in the class of the target; the other operations
    are these methods. Python raises for a name that is no string, and for ``object.__setattr__``
    of a class.
    """
    owner, _, called = annotation.operation.rpartition(".")
    if not is_instance(name, str) or (is_instance(target, type) and owner == "builtins.object"):
        return True
    may_override = called in ("setattr", "delattr")
    method = "__delattr__" if value is NOT_GIVEN else "__setattr__"
    location = attributes.location_of_store(rec, target, name, method, may_override=may_override)
    if location is None:
        return True
    if value is not NOT_GIVEN:
        rec.mutations.store(*location, value)
    elif attributes.read_location(rec, target, location):
        rec.mutations.remove(*location)
    return True

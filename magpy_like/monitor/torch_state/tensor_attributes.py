"""Attributes of tensors: torch's own are operators or metadata, others are instance attributes."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind, lookup
from magpy_like.monitor.calls import native_calls
from magpy_like.monitor.calls.results import native_results
from magpy_like.monitor.instructions.step import finish_without_result
from magpy_like.monitor.objects import attributes
from magpy_like.monitor.torch_state import autograd_nodes, tensor_metadata
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def read(context: Context, tensor: torch.Tensor, name: str) -> Any:
    rec = context.recording
    if (confined := context.isolation.current()) is not None:
        confined.check_attribute(name)
    descriptor = lookup_in_type(type(tensor), name)
    if name == "__class__":
        rec.inspections.check_class_is_fixed(tensor)
    if descriptor is NULL or name in _OF_OBJECT:
        rec.inspections.check_no_alias(tensor, f"reads the attribute {name} of")
    if is_instance(descriptor, types.GetSetDescriptorType):
        if name == "grad":
            return _read_grad(context, tensor)
        if name in ("grad_fn", "_grad_fn") and tensor.grad_fn is None:
            tensor_metadata.guard_metadata(context, operator.attrgetter(name), tensor)
            return None
        if name == "grad_fn":
            return autograd_nodes.read_node(context, tensor)
        annotation = lookup(descriptor)
        if annotation is None:
            raise Split(
                SplitReason.UNANNOTATED_NATIVE_ATTRIBUTE,
                f"reads Tensor.{name}, which has no annotation",
                f"Tensor.{name}",
            )
        return native_calls.begin_native_call(context, annotation, descriptor, (tensor,), {})
    if descriptor is NULL or not hasattr(type(descriptor), "__set__"):
        attributes.read_instance(rec, tensor, name)
    return None


_OF_OBJECT = ("data", "grad_fn", "_grad_fn")
"""Attributes in which the result of a branch differs from the tensor that it may be. The version
counter does not show writes through ``data``."""


def _read_grad(context: Context, tensor: torch.Tensor) -> None:
    node = context.recording.variables.node(tensor)
    if node is None:
        raise Split(SplitReason.AUTOGRAD_GRAPH, "reads the gradient of an intermediate tensor")
    relation = Relation(RelationKind.SLOT, "grad")
    context.recording.reads.record(node, relation, tensor.grad)


def write(context: Context, tensor: torch.Tensor, name: str, value: Any) -> Any:
    """Record the assignment of an attribute: an operator for torch's own, else a mutation."""
    context.recording.inspections.check_no_alias(tensor, f"sets the attribute {name} of")
    descriptor = lookup_in_type(type(tensor), name)
    if descriptor is not NULL and hasattr(type(descriptor), "__set__"):
        if is_instance(descriptor, property):
            return None
        if name == "data" and is_instance(value, torch.Tensor):
            context.recording.graph.replace_data(tensor, value)
            context.casts.note_write(tensor)
            return native_results.recorded_tensor_call((tensor, value))
        if name == "requires_grad" and is_instance(value, bool):
            return _require_grad(context, tensor, value)
        node = context.recording.variables.node(tensor)
        if name == "grad" and node is not None:
            context.recording.mutations.snapshot(node)
            return _finish_grad, (node, value)
        raise Split(SplitReason.TENSOR_INTERNALS, f"sets Tensor.{name}")
    node = context.recording.variables.node(tensor)
    if node is not None:
        context.recording.mutations.store(node, Relation(RelationKind.ATTRIBUTE, name), value)
    return None


def _require_grad(context: Context, tensor: torch.Tensor, value: bool) -> Any:
    if tensor.requires_grad == value:
        return None
    operation = torch.Tensor.requires_grad_
    annotation = lookup(operation)
    assert annotation is not None
    token = native_calls.begin_native_call(context, annotation, operation, (tensor, value), {})
    return finish_without_result, token


def _finish_grad(context: Context, payload: tuple[ShadowNode, Any], result: Any) -> None:
    """Torch has accepted the gradient."""
    node, value = payload
    context.account()
    context.recording.mutations.store(node, Relation(RelationKind.SLOT, "grad"), value)

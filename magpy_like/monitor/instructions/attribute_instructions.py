"""Attributes, read, stored and deleted: the reads follow Python's own look-up."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import lookup
from magpy_like.monitor.calls import call_dispatch, compiled_callees, native_calls
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects import attributes, class_lookup
from magpy_like.monitor.objects.containers import NATIVE_TYPES
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.torch_state import autograd_nodes
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split, unknown_value_split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def read_attribute(context: Context, step: Step) -> Token:
    """``value.name``."""
    value = step.stack[-1]
    name = step.name
    if is_instance(value, torch.Tensor):
        return context.read_tensor_attribute(value, name)
    if autograd_nodes.is_node(context.recording, value):
        autograd_nodes.read_attribute(context, value, name)
        return None
    if type(value) not in NATIVE_TYPES:
        attributes.read_attribute(context.recording, value, name)
        value = compiled_callees.read_original(context.recording, value)
        descriptor = attributes.native_property(value, name)
        if descriptor is not None:
            annotation = lookup(descriptor)
            if annotation is not None:
                return native_calls.begin_native_call(context, annotation, descriptor, (value,), {})
            if context.recording.variables.node(value) is not None:
                read = f"{type(value).__qualname__}.{name}"
                raise unknown_value_split(
                    value,
                    SplitReason.UNANNOTATED_NATIVE_ATTRIBUTE,
                    f"reads {read}, which native code without an annotation computes",
                    read,
                )
        return _lift_attribute(context, step, value, name)
    return None


def _lift_attribute(context: Context, step: Step, value: Any, name: str) -> Token:
    if is_instance(lookup_in_type(type(value), "__getattribute__"), types.FunctionType):
        return None  # Python code reads the attribute, and is followed
    node, relation, found = attributes.locate_number(context.recording, value, name)
    return varying_reads.lift_read(context, step, node, relation, found)


def read_super_attribute(context: Context, step: Step) -> Token:
    """``super().name`` in one instruction (Python 3.12)."""
    function, cls, receiver = step.stack[-3:]
    if function is not super:
        return call_dispatch.call(context, function, (cls, receiver), {})
    bound_to_class = is_instance(receiver, type) and issubclass(receiver, cls)
    of = receiver if bound_to_class else type(receiver)
    class_lookup.read_super(context.recording, cls, of, step.name)
    return None


def write_attribute(context: Context, step: Step) -> Token:
    """``target.name = value``."""
    value, target = step.stack[-2:]
    return store_attribute(context, target, step.name, value)


def store_attribute(context: Context, target: Any, name: str, value: Any) -> Token:
    """``target.name = value`` by the default rules; a ``__setattr__`` in Python is followed."""
    if is_instance(target, torch.Tensor):
        return context.write_tensor_attribute(target, name, value)
    location = attributes.location_of_store(context.recording, target, name, "__setattr__")
    if location is not None:
        context.recording.mutations.store(*location, value)
    return None


def delete_attribute(context: Context, step: Step) -> Token:
    """``del target.name``."""
    target = step.stack[-1]
    if is_instance(target, torch.Tensor):
        raise Split(SplitReason.TENSOR_INTERNALS, f"deletes the attribute {step.name} of a tensor")
    location = attributes.location_of_store(context.recording, target, step.name, "__delattr__")
    if location is not None and attributes.read_location(context.recording, target, location):
        context.recording.mutations.remove(*location)
    return None

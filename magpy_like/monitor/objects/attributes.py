"""Attribute access: the locations that it reads, in Python's order.

``getattr(o, name)`` reads the classes of ``type(o).__mro__``, the instance's dictionary and
``__getattr__``. Each read is an edge of the RefGraph, to a value or to its absence. The monitor
follows Python code among them (properties, ``__getattr__``) like any call.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation.schema import RelationKind, ValueRead
from magpy_like.monitor.calls.compiled_callees import read_original
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.class_lookup import location_of_class_number, read_class, read_super
from magpy_like.monitor.objects.class_lookup import location_of_store as location_of_class_store
from magpy_like.monitor.objects.containers import DICT_VIEWS
from magpy_like.monitor.objects.exc_info import rely_on_none_outside
from magpy_like.monitor.symbolic.expressions import is_number_or_flag
from magpy_like.monitor.torch_state import autograd_nodes
from magpy_like.native import NULL, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.refgraph.plain_values import HEAP_TYPE, IMMUTABLE_TYPE, slot_names
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.operators import OpNamespace, OpOverloadPacket, Ops

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

_MODULE_GETATTR = torch.nn.Module.__getattr__
_MODULE_STORES = ("_parameters", "_buffers", "_modules")
_FUNCTION_SLOTS = {
    "__defaults__", "__kwdefaults__", "__closure__", "__code__", "__name__", "__qualname__",
    "__doc__", "__module__", "__annotations__",
}  # fmt: skip


_CLASS_SLOTS = {"__name__", "__qualname__", "__bases__", "__base__", "__mro__"}
"""Attributes of a class that are not in its dictionary and that the program may set."""


def attribute_location(rec: Recording, value: Any, name: str) -> tuple[ShadowNode | None, Relation]:
    """The location of an instance's attribute: the node of its owner, and the relation.

    A module's attributes are the global names of its functions: one location for both. The owner
    is None if the instance is new.
    """
    if is_instance(value, types.ModuleType):
        rec.variables.constant(value)  # the guard checks its class
        return rec.variables.constant(instance_dict(value)), Relation(RelationKind.GLOBAL, name)
    if rec.reads.dictionaries:
        kept = rec.variables.node(instance_dict(value))
        if kept is not None and kept.changed:
            return kept, Relation(RelationKind.KEY, name)
    return rec.variables.node(value), Relation(RelationKind.ATTRIBUTE, name)


def locate_number(rec: Recording, value: Any, name: str) -> tuple[ShadowNode | None, Relation, Any]:
    """The location and value of the number or flag that ``value.name`` reads.

    The owner and the value are None if the program reads no number or flag.
    """
    value = read_original(rec, value)
    slot = NULL if is_instance(value, type) else lookup_in_type(type(value), name)
    if type(slot) is types.MemberDescriptorType:
        found = _slot_value(value, slot)
        location = rec.variables.node(value), Relation(RelationKind.SLOT, name)
        return (*location, found) if is_number_or_flag(found) else _NOWHERE
    entries = None if is_instance(value, type) else instance_dict(value)
    found = NULL if entries is None else dict.get(entries, name, NULL)
    if found is not NULL:
        return (
            (*attribute_location(rec, value, name), found) if is_number_or_flag(found) else _NOWHERE
        )
    cls = value if is_instance(value, type) else type(value)
    found = lookup_in_type(cls, name)
    return (
        (*location_of_class_number(rec, cls, name), found) if is_number_or_flag(found) else _NOWHERE
    )


_NOWHERE = None, Relation(RelationKind.ATTRIBUTE), None


def read_instance(rec: Recording, value: Any, name: str) -> bool:
    """Read an entry of the instance's own dictionary; True if ``name`` is there."""
    attributes = instance_dict(value)
    if attributes is None:
        return False
    found = dict.get(attributes, name, NULL)
    node, relation = attribute_location(rec, value, name)
    if node is not None:
        if found is NULL:
            rec.reads.record_absent(node, relation)
        else:
            rec.reads.record(node, relation, found)
    return found is not NULL


def read_attribute(rec: Recording, value: Any, name: str) -> None:
    """Record the reads of ``value.name``, which the program is about to evaluate."""
    cls = type(value)
    if is_instance(value, _OPERATORS):
        _find_operator(value, name)
    if cls is types.ModuleType or is_instance(value, types.ModuleType):
        read_module(rec, value, name)
    elif is_instance(value, type):
        if (
            name == "__dict__"
            and value.__flags__ & HEAP_TYPE
            and not rec.variables.is_new_object(value)
        ):
            # Each read creates another proxy of the same dictionary.
            proxy = value.__dict__
            rec.reads.record(rec.variables.constant(value), Relation(RelationKind.DICT), proxy)
            rec.inspections.unwrap_proxy(proxy)
            return
        of_metaclass = read_class(rec, cls, name)  # before the class's own when it is a property
        found = read_class(rec, value, name)
        if found is NULL and of_metaclass is NULL:
            read_class(rec, cls, "__getattr__")
        class_lookup.read_descriptor_methods(rec, of_metaclass)
        class_lookup.read_descriptor_methods(rec, found)
        of_heap = value.__flags__ & HEAP_TYPE and not rec.variables.is_new_object(value)
        if of_heap and name in _CLASS_SLOTS and type(of_metaclass) is types.GetSetDescriptorType:
            rec.reads.record(
                rec.variables.constant(value),
                Relation(RelationKind.SLOT, name),
                getattr(value, name),
            )
    elif cls is super:
        read_super(rec, value.__thisclass__, value.__self_class__, name)
    elif cls is types.MethodType:
        read_method(rec, value)
    elif cls is types.FunctionType:
        read_function(rec, value, name)
    else:
        read_object(rec, value, name)


_OPERATORS = (Ops, OpNamespace, OpOverloadPacket)


def _find_operator(within: Any, name: str) -> None:
    """Make `torch.ops` cache an operator now: a guard must not depend on earlier look-ups."""
    with contextlib.suppress(Exception):  # the program raises the same exception
        getattr(within, name)


def read_module(rec: Recording, module: types.ModuleType, name: str) -> None:
    """Record the reads of ``module.name``: also those of ``__getattr__``, which Python looks up in
    the module before its class."""
    cls = type(module)
    for part in (module, instance_dict(module)):
        rec.variables.constant(part)
    read_class(rec, cls, "__getattribute__")
    found = read_class(rec, cls, name)
    if class_lookup.precedes_instance(rec, found) or read_instance(rec, module, name):
        return
    if found is NULL:
        read_instance(rec, module, "__getattr__")
        read_class(rec, cls, "__getattr__")


def read_method(rec: Recording, method: types.MethodType) -> None:
    node = rec.variables.node(method)
    if node is not None:
        rec.reads.record_bound_method(node)


def read_dictionary(rec: Recording, owner: Any) -> None:
    """Record a read of the dictionary that holds an instance's attributes, if it has one.

    Raises:
        Split: the owner is one of several tensors, according to the data.
    """
    node, entries = rec.variables.node(owner), instance_dict(owner)
    if entries is None:
        return
    if node is None:
        if is_instance(owner, torch.Tensor):
            rec.inspections.check_no_alias(owner, "reads the attributes of")
        rec.reads.note_new_dictionary(owner, entries)
    else:
        rec.reads.record_dictionary(node, entries)


def read_function(rec: Recording, function: types.FunctionType, name: str) -> None:
    if name == "__dict__":
        read_dictionary(rec, function)
        return
    node = rec.variables.node(function)
    if node is None:
        return
    if name in _FUNCTION_SLOTS:
        rec.reads.record(node, Relation(RelationKind.SLOT, name), getattr(function, name))
    else:
        read_instance(rec, function, name)


def read_signature(rec: Recording, function: Any) -> None:
    """Record the reads of ``inspect.signature`` for a function, a method or a class."""
    if is_instance(function, types.MethodType):
        read_method(rec, function)
        function = function.__func__
    if is_instance(function, type):
        for name in ("__signature__", "__new__", "__init__", "__annotations__"):
            found = read_class(rec, function, name)
            if is_instance(found, types.FunctionType):
                read_signature(rec, found)
    node = rec.variables.node(function) if is_instance(function, types.FunctionType) else None
    if node is None:
        return
    for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
        read_function(rec, function, name)
        rec.inspections.visit(getattr(function, name), ValueRead.ELEMENTS)
    for name in ("__signature__", "__wrapped__"):
        if read_instance(rec, function, name):
            read_signature(rec, function.__dict__[name])


def read_object(rec: Recording, value: Any, name: str) -> None:
    value = read_original(rec, value)
    cls = type(value)
    if is_instance(value, threading.local) and rec.variables.node(value) is not None:
        raise Split(SplitReason.THREADS, "reads thread-local data")
    if rec.effects.hooks:
        autograd_nodes.check_handle_attribute(rec, value, name)
    getter = lookup_in_type(cls, "__getattribute__")
    if cls not in rec.classes.read_from:
        rec.classes.read_from.add(cls)
        read_class(rec, cls, "__getattribute__")
    if is_instance(getter, types.FunctionType):
        pass  # followed
    elif issubclass(cls, _PROXIES) and rec.variables.node(value) is not None:
        raise Split(SplitReason.WEAK_REFERENCE, f"reads {name} through a weak proxy")
    else:
        read_by_default_rules(rec, value, name)


def read_by_default_rules(rec: Recording, value: Any, name: str) -> None:
    """Record the reads of ``object.__getattribute__(value, name)``, then those of
    ``__getattr__``."""
    value = read_original(rec, value)
    cls = type(value)
    found = read_class(rec, cls, name)
    kind = type(found)
    if name == "__context__" and is_instance(value, BaseException):
        rely_on_none_outside(rec)
    if class_lookup.precedes_instance(rec, found):
        if kind is types.MemberDescriptorType:
            read_slot(rec, value, name, found)
        elif name == "__dict__":
            read_dictionary(rec, value)
        elif name == "mapping" and is_instance(value, DICT_VIEWS):
            rec.inspections.shown_mapping(value)  # the result is a new proxy of it
        elif kind not in _GETTER_KINDS or not _is_followed(found):
            _read_natively(rec, value, name, kind)
        return
    if read_instance(rec, value, name):
        return
    if found is not NULL:
        _read_natively(rec, value, name, kind)
        return
    if lookup_in_type(cls, "__getattr__") is _MODULE_GETATTR:
        read_class(rec, cls, "__getattr__")
        read_submodule(rec, value, name)
    elif cls.__flags__ & HEAP_TYPE:
        read_class(rec, cls, "__getattr__")


_BINDING = {
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    classmethod,
    staticmethod,
    functools._lru_cache_wrapper,
    type,
    type(np.random.RandomState.rand),  # a Cython function
    type(np.random.Generator.random),
}
"""Descriptors that bind a function or return a constant, and read nothing of the instance."""
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_GETTER_KINDS = {property, types.GetSetDescriptorType}


def _is_followed(found: Any) -> bool:
    """False for a property whose getter is native code."""
    return not is_instance(found, property) or is_instance(found.fget, types.FunctionType | None)


def _read_natively(rec: Recording, value: Any, name: str, kind: type) -> None:
    """Record the reads of a descriptor of class ``kind``, such as a field of a named tuple.

    Raises:
        Split: the reads are unknown.
    """
    node = rec.variables.node(value)
    getter = lookup_in_type(kind, "__get__")
    if node is None or getter is NULL or kind in _BINDING:
        return
    if is_instance(getter, types.FunctionType):
        return  # followed
    if not is_instance(value, tuple):
        raise Split(
            SplitReason.UNANNOTATED_NATIVE_ATTRIBUTE,
            f"reads {type(value).__qualname__}.{name}, which native code computes",
            f"{type(value).__qualname__}.{name}",
        )
    rec.reads.record_contents(node)


def read_all(rec: Recording, value: Any) -> None:
    """Record a read of all attributes of an instance, and of the absence of others."""
    value = read_original(rec, value)
    node = rec.variables.node(value)
    entries = instance_dict(value)
    if node is not None and entries is not None:
        inside = rec.reads.record_dictionary(node, entries)
        rec.inspections.inspect_keys(inside)
        for name in dict.keys(entries):
            read_instance(rec, value, name)
    for name in slot_names(type(value)):
        read_slot(rec, value, name, lookup_in_type(type(value), name))


def read_slot(rec: Recording, value: Any, name: str, slot: Any) -> None:
    node = rec.variables.node(value)
    if node is None:
        return
    relation, found = Relation(RelationKind.SLOT, name), _slot_value(value, slot)
    if found is NULL:
        rec.reads.record_absent(node, relation)
        if type(value).__flags__ & HEAP_TYPE:
            read_class(rec, type(value), "__getattr__")
    else:
        rec.reads.record(node, relation, found)


def read_submodule(rec: Recording, module: torch.nn.Module, name: str) -> None:
    """Record the reads of ``nn.Module.__getattr__``: parameters, then buffers, then submodules."""
    module = read_original(rec, module)
    for store in _MODULE_STORES:
        if not read_instance(rec, module, store):
            continue
        entries = module.__dict__[store]
        node = rec.variables.node(entries)
        is_present = name in entries
        if node is not None:
            relation = Relation(RelationKind.KEY, name)
            if is_present:
                rec.reads.record(node, relation, entries[name])
            else:
                rec.reads.record_absent(node, relation)
        if is_present:
            return


def location_of_store(
    rec: Recording, target: Any, name: str, method: str, *, may_override: bool = True
) -> tuple[ShadowNode, Relation] | None:
    """The location that setting or deleting an attribute changes: an entry or a slot.

    Args:
        rec: The recording.
        target: The object whose attribute changes.
        name: The attribute's name.
        method: ``__setattr__`` or ``__delattr__``.
        may_override: True if the target's class may override ``method``.

    Returns:
        None for a new object, where Python raises an error, and where Python code stores the
        attribute, which the monitor follows.

    Raises:
        Split: native code stores the attribute where the monitor cannot reproduce it.
    """
    target = read_original(rec, target)
    cls = type(target)
    setter = read_class(rec, cls, method) if may_override else getattr(type, method)
    if is_instance(setter, types.FunctionType):
        return None
    node = rec.variables.node(target)
    if is_instance(target, type):
        if (
            rec.variables.is_new_object(target)
            or target.__flags__ & (HEAP_TYPE | IMMUTABLE_TYPE) != HEAP_TYPE
        ):
            return None
    found = read_class(rec, cls, name)  # of a new object too: its class may get a descriptor
    class_lookup.read_descriptor_methods(rec, found)
    if node is None:
        return None
    if is_instance(found, types.MemberDescriptorType) and node is not None:
        return node, Relation(RelationKind.SLOT, name)
    setters = [lookup_in_type(type(found), name) for name in ("__set__", "__delete__")]
    if is_instance(found, property) or any(is_instance(s, types.FunctionType) for s in setters):
        return None
    if any(s is not NULL for s in setters):
        raise Split(
            SplitReason.UNANNOTATED_NATIVE_ATTRIBUTE,
            f"sets {cls.__qualname__}.{name}, which native code stores",
            f"{cls.__qualname__}.{name}",
        )
    if is_instance(target, type):
        return location_of_class_store(rec, target, name, setter)
    if instance_dict(target) is None:
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"sets an attribute of a {cls.__qualname__}, which has no instance dictionary",
        )
    owner, relation = attribute_location(rec, target, name)
    return None if owner is None else (owner, relation)


def read_location(rec: Recording, target: Any, location: tuple[ShadowNode, Relation]) -> bool:
    """Record a read of a location of ``target``; True if it has a value."""
    target = read_original(rec, target)
    kind, name = location[1].kind, str(location[1].key)
    if kind is RelationKind.SLOT:
        found = _slot_value(target, lookup_in_type(type(target), name))
    elif is_instance(target, type):
        found = type.__dict__["__dict__"].__get__(target).get(name, NULL)
    else:
        found = dict.get(instance_dict(target) or {}, name, NULL)
    if found is NULL:
        rec.reads.record_absent(*location)
    else:
        rec.reads.record(*location, found)
    return found is not NULL


def _slot_value(value: Any, slot: Any) -> Any:
    """The value of an instance's slot; NULL if it has none."""
    try:
        return slot.__get__(value, type(value))
    except AttributeError:
        return NULL


def native_property(value: Any, name: str) -> Any:
    """The native descriptor that computes ``value.name``; None if there is none."""
    found = lookup_in_type(type(value), name)
    return (
        found
        if is_instance(found, types.GetSetDescriptorType) and name not in _REFLECTIVE
        else None
    )


_REFLECTIVE = {"__dict__", "__class__", "__weakref__"}
"""Native descriptors of every class, which have rules of their own."""

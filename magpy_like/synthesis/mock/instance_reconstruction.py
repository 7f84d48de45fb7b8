"""Reconstruction of instances: created empty by their class, then filled with their state."""

from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.autograd.profiler import record_function

from magpy_like.monitor.objects.containers import hashes_in_python, items_of
from magpy_like.native import NULL, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import (
    HEAP_TYPE,
    array_owner,
    proxied_mapping,
    slot_names,
)
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.mock.exception_reconstruction import native_arguments
from magpy_like.synthesis.mock.instance_layout import native_layout

if TYPE_CHECKING:
    from magpy_like.synthesis.mock.reconstruction import Reconstruction


_BASES_OF_ANY_ORIGIN = (list, dict, set, tuple, collections.deque, BaseException)
"""Native bases whose instances are created again even if native code created the recorded one."""


class Instances:
    """Emits instances of classes in Python, and of some native ones."""

    def __init__(self, values: Reconstruction) -> None:
        self._values, self._rec, self._source = values, values.rec, values.source
        self._array_owners: dict[int, Any] = {}

    def make_instance(self, value: Any) -> str:
        """Create an instance and fill it: contents, attributes, exception state, slots.

        Raises:
            Split: the mock cannot create it, or its origin is unknown.
        """
        cls = type(value)
        self._check_origin(value, cls)
        if is_instance(value, torch.nn.Module) and not self._rec.variables.is_new_object(value):
            return self._values.remember(value, self._source.constant(value, cls.__name__.lower()))
        class_name = self._source.constant(cls, cls.__name__)
        if is_instance(value, tuple) and hasattr(cls, "n_sequence_fields"):  # a structseq
            return self._values.frozen(value, lambda: f"{class_name}({self._items(value)})")
        name = self._empty(value, cls, class_name)
        self._fill(value, name)
        return name

    def _check_origin(self, value: Any, cls: type) -> None:
        if self._rec.variables.is_new_object(cls):
            raise Split(
                SplitReason.CLASS_CHANGE, "leaves an instance of a class that it has created"
            )
        if lookup_in_type(cls, "__del__") is not NULL:
            raise Split(
                SplitReason.FINALIZER,
                f"leaves a {cls.__qualname__}, whose __del__ runs after the region",
            )
        if is_instance(value, torch.nn.Module):
            return
        if not self._rec.variables.is_new_object(value) and not is_instance(
            value, _BASES_OF_ANY_ORIGIN
        ):
            raise Split(
                SplitReason.UNKNOWN_ORIGIN, f"leaves a {cls.__qualname__} of unknown origin"
            )
        if is_instance(value, BaseException):
            if value is self._rec.state.handled_outside:
                raise Split(
                    SplitReason.EXCEPTION_STATE, "leaves an exception that its caller is handling"
                )
            if value.__traceback__ is not None and not self._rec.continues:
                raise Split(
                    SplitReason.EXCEPTION_STATE, f"leaves a {cls.__qualname__} with its traceback"
                )

    def _fill(self, value: Any, name: str) -> None:
        values = self._values
        state = instance_dict(value)
        if is_instance(value, collections.OrderedDict):
            put = self._source.constant(collections.OrderedDict.__setitem__, "OrderedDict_setitem")
            for key, item in items_of(value):
                if hashes_in_python(key):
                    raise Split(
                        SplitReason.UNGUARDABLE_KEY,
                        "leaves an OrderedDict with keys that have a __hash__ in Python",
                    )
                self._source.emit(f"{put}({name}, {values.value(key)}, {values.value(item)})")
        else:
            values.containers.fill(value, name)
        if state:
            attributes = f"{self._source.constant(instance_dict)}({name})"
            self._source.emit(f"dict.update({attributes}, {values.containers.dict_text(state)})")
        if is_instance(value, BaseException):
            values.exceptions.restore_state(value, name)
        for slot in slot_names(type(value)):
            try:
                found = object.__getattribute__(value, slot)
            except AttributeError:
                continue
            setter = self._source.constant(object.__setattr__, "object_setattr")
            self._source.emit(f"{setter}({name}, {slot!r}, {values.value(found)})")

    def _items(self, value: Any) -> str:
        return self._values.containers.tuple_text(tuple.__iter__(value))

    def _empty(self, value: Any, cls: type, class_name: str) -> str:
        """Create the object without its state, and without a call of ``__init__``."""
        if is_instance(value, tuple):
            return self._values.frozen(
                value, lambda: f"tuple.__new__({class_name}, {self._items(value)})"
            )
        if is_instance(value, collections.defaultdict):
            factory = self._values.value(value.default_factory)
            name = self._values.bind(value, f"{class_name}.__new__({class_name})")
            maker = self._source.constant(collections.defaultdict, "defaultdict")
            self._source.emit(f"{maker}.__init__({name}, {factory})")
            return name
        if is_instance(value, collections.deque):
            maker = self._source.constant(collections.deque, "deque")
            name = self._values.bind(value, f"{maker}.__new__({class_name})")
            if value.maxlen is not None:
                self._source.emit(f"{maker}.__init__({name}, (), {value.maxlen})")
            return name
        for base, state in _NATIVE_STATE:
            if is_instance(value, base):
                base = native_layout(cls) if base is BaseException else base
                maker = self._source.constant(base, base.__name__)
                args = self._further_arguments(state(value))
                return self._values.bind(value, f"{maker}.__new__({class_name}{args})")
        if cls.__flags__ & HEAP_TYPE and native_layout(cls) is object:
            return self._values.bind(value, f"object.__new__({class_name})")
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"leaves a {cls.__qualname__}, whose state native code stores",
        )

    def _further_arguments(self, state: tuple[Any, ...]) -> str:
        """The text of arguments of ``__new__`` after the class."""
        if self._rec.variables.node(state) is not None:
            return f", *{self._values.value(state)}"  # the program's tuple: its numbers may vary
        return "".join(f", {self._values.value(part)}" for part in state)

    def make_array(self, array: np.ndarray[Any, Any]) -> str:
        if not self._rec.variables.is_new_object(array) or array.dtype.hasobject:
            raise Split(SplitReason.UNKNOWN_ORIGIN, "leaves a NumPy array of unknown origin")
        owner = array_owner(array)
        if not array.flags.writeable:
            raise Split(SplitReason.NUMPY_MEMORY, "leaves a NumPy array that cannot be written to")
        if not self._rec.variables.is_new_object(owner):
            raise Split(SplitReason.NUMPY_MEMORY, "leaves a NumPy array in the memory of another")
        if self.makes_memory_of(owner):
            raise Split(SplitReason.NUMPY_MEMORY, "leaves NumPy arrays that share their memory")
        self._array_owners[id(owner)] = owner
        return self._values.bind(array, f"{self._source.constant(array.copy(), 'array')}.copy()")

    def makes_memory_of(self, owner: Any) -> bool:
        """True if the mock creates an array in the memory of this one."""
        return id(owner) in self._array_owners

    def make_proxy(self, proxy: types.MappingProxyType[Any, Any]) -> str:
        if not self._rec.variables.is_new_object(proxy):
            raise Split(SplitReason.UNKNOWN_ORIGIN, "leaves a mapping proxy of unknown origin")
        make = self._source.constant(types.MappingProxyType, "MappingProxyType")
        return self._values.bind(proxy, f"{make}({self._values.value(proxied_mapping(proxy))})")

    def make_reference(self, reference: weakref.ref[Any]) -> str:
        target = reference()
        if target is None or reference.__callback__ is not None:
            raise Split(
                SplitReason.WEAK_REFERENCE, "leaves a weak reference that is dead or has a callback"
            )
        make = self._source.constant(type(reference), "weak_reference")
        return self._values.bind(reference, f"{make}({self._values.value(target)})")

    def make_profiler_label(self, label: record_function) -> str:
        """A profiler's range, which is a new one at every call."""
        if type(label) is not record_function:
            return self.make_instance(label)
        has_begun = label.record is not None
        make = self._source.constant(begin_profiler_label if has_begun else record_function)
        arguments = ", ".join(map(self._values.value, (label.name, label.args)))
        return self._values.bind(label, f"{make}({arguments})")


def begin_profiler_label(name: str, args: str | None) -> record_function:
    """A profiler's range that has begun; it ends when the program exits or releases it."""
    return record_function(name, args).__enter__()


def _stateless(value: Any) -> tuple[()]:
    return ()


_NATIVE_STATE: tuple[tuple[type, Callable[[Any], tuple[Any, ...]]], ...] = (
    (collections.OrderedDict, _stateless),
    (dict, _stateless),
    (list, _stateless),
    (set, _stateless),
    (int, lambda value: (int.__int__(value),)),
    (float, lambda value: (float.__float__(value),)),
    (str, lambda value: (str.__str__(value),)),
    (bytes, lambda value: (bytes.__getitem__(value, slice(None)),)),
    (BaseException, lambda error: native_arguments(error)),
    (types.SimpleNamespace, _stateless),
)
"""Native classes with subclasses in Python, and further arguments of their ``__new__``."""

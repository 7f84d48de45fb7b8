"""Plain values, compared by value, and queries of objects that call no code of the program."""

from __future__ import annotations

import abc
import datetime
import enum
import fractions
import gc
import re
import types
import typing
import uuid
import weakref
from typing import Any

import numpy as np
import torch

from magpy_like.native.instance_checks import answers_in_python, is_instance
from magpy_like.torch_compat.dispatch import DisableTorchFunctionSubclass

HEAP_TYPE = 1 << 9
"""Bit of ``__flags__``: a class created at run time, as all classes in Python are."""
IMMUTABLE_TYPE = 1 << 8
"""Bit of ``__flags__``: a class whose attributes cannot be set, as most native ones."""

PLAIN_TYPES: frozenset[type] = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(Ellipsis),
        type(NotImplemented),
        range,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.Size,
        torch.finfo,
        torch.iinfo,
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        fractions.Fraction,
        uuid.UUID,
        re.Pattern,
    }
)

IDENTITY_TYPES: tuple[type, ...] = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.CodeType,
    types.UnionType,
    types.GenericAlias,
    type(typing.Union),
    staticmethod,
    classmethod,
    property,
    enum.Enum,
    torch.Generator,
    np.ufunc,
    type(np.sum),
)
"""Types whose instances are compared by identity."""


def proxied_mapping(proxy: Any) -> Any:
    """The mapping of a mapping proxy or a view of a dictionary, to which Python itself offers no
    access."""
    return gc.get_referents(proxy)[0]


def class_entries(cls: type) -> dict[str, Any]:
    """The dictionary of a class's own attributes."""
    entries: dict[str, Any] = proxied_mapping(_dict_of(cls))
    return entries


_dict_of = type.__dict__["__dict__"].__get__


def class_name(cls: type) -> str:
    """The qualified name of a class, without its metaclass."""
    name: str = _name_of(cls)
    return name


def callable_name(target: Any) -> str:
    """The qualified name of a function or class, or of the class of another callable, for people.

    No code of the program runs.
    """
    if type(target) is types.MethodType:
        return callable_name(target.__func__)
    if is_instance(target, type):
        return class_name(target)
    if not answers_in_python(target):
        named = getattr(target, "__qualname__", None)
        if is_instance(named, str):
            return str(named)
    return class_name(type(target))


_name_of = type.__dict__["__qualname__"].__get__


def array_owner(array: np.ndarray[Any, Any]) -> Any:
    """The object whose memory an array is in: the array itself unless it is a view."""
    owner: Any = array
    while (base := getattr(owner, "base", None)) is not None:
        owner = base
    return owner


def array_metadata(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """dtype, shape, strides (in bytes) and flags of a NumPy array."""
    return array.dtype, array.shape, array.strides, array.flags.num


def is_mutable_class(cls: type) -> bool:
    """True if attributes of the class can be set: any class in Python, and some native ones."""
    return cls.__flags__ & (HEAP_TYPE | IMMUTABLE_TYPE) == HEAP_TYPE


def bind(method: Any, receiver: Any) -> Any:
    """Bind a native method to an object.

    CPython crashes if the class is not passed to a method that needs it.
    """
    return method.__get__(receiver, type(receiver))


def is_plain(value: Any) -> bool:
    """True if a value is compared by value.

    NumPy's structured scalars and instances of classes in Python are mutable, thus not plain.
    """
    kind = type(value)
    # Another metaclass may define a hash, which a look-up would call.
    meta = type(kind)
    if ((meta is type or meta is abc.ABCMeta) and kind in PLAIN_TYPES) or is_instance(
        value, np.dtype
    ):
        return True
    return is_instance(value, np.generic) and not (
        is_instance(value, np.void) or type(value).__flags__ & HEAP_TYPE
    )


def is_same_value(a: Any, b: Any) -> bool:
    """True if no operation distinguishes two plain values, or two keys that consist of them.

    Equality does not suffice: numbers of different types may be equal, as are 0.0 and -0.0, and
    NumPy's hour and 60 minutes. Values that are not plain are compared by identity.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) in _COMPARED_BY_EQUALITY:
        return bool(a == b)
    if type(a) in (tuple, frozenset):
        return len(a) == len(b) and all(map(is_same_value, a, b))
    if is_instance(a, np.generic):
        return is_plain(a) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    # The text of a long pattern is cut off, and NaN is not equal to itself.
    return is_plain(a) and repr(a) == repr(b) and (a == b or a != a)


def is_interned(value: Any) -> bool:
    """True if there is only one object with this plain value, so that equal ones are the same."""
    if type(value) is int:
        return -5 <= value <= 256
    if type(value) in (str, bytes):
        return len(value) < 2 and (not value or type(value) is bytes or value < "\u0100")
    return type(value) in _INTERNED_TYPES


_INTERNED_TYPES = {
    type(None), bool, type(...), type(NotImplemented), torch.dtype, torch.layout,
    torch.memory_format,
}  # fmt: skip
_COMPARED_BY_EQUALITY = (bool, int, str, bytes, torch.dtype, torch.device)


def is_identity(value: Any) -> bool:
    """True if a value is compared by identity, as a class or a built-in function is."""
    return is_instance(value, IDENTITY_TYPES)


def slot_names(cls: type) -> list[str]:
    """The names of an instance's attribute slots, except those that a derived class hides.

    ``copyreg`` finds these, too, but caches them on the class, where the program would see them.
    """
    names = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if is_instance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}" if base.__name__.strip("_") else name
            found_in = next((c for c in cls.__mro__ if name in c.__dict__), None)
            if name not in ("__dict__", "__weakref__") and found_in is base:
                names.append(name)
    return names


def storage_of(tensor: torch.Tensor) -> int:
    """An id of the tensor's storage; 0 for a layout without one."""
    if tensor.layout != torch.strided:
        return 0
    with DisableTorchFunctionSubclass():
        return int(tensor.untyped_storage()._cdata)


def memory_span(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and size in bytes of a CPU tensor's storage; (0, 0) for other kinds."""
    if tensor.layout != torch.strided or not has_values(tensor) or tensor.device.type != "cpu":
        return 0, 0
    with DisableTorchFunctionSubclass():
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()


def tensor_version(tensor: torch.Tensor) -> int:
    """The version counter of a tensor's data; -1 for an inference tensor, which has none."""
    with DisableTorchFunctionSubclass():  # some subclasses return nothing
        return -1 if tensor.is_inference() else tensor._version


def is_leaf_or_view_of_one(tensor: torch.Tensor) -> bool:
    """True if autograd admits writes to the tensor only where it does not record them."""
    base = tensor._base
    return tensor.is_leaf or (base is not None and base.is_leaf)


def overrides_torch_function(value: Any) -> bool:
    """True for a tensor subclass whose own ``__torch_function__`` sees all operators.

    Torch's own subclasses only run the operator.
    """
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter or not is_instance(value, torch.Tensor):
        return False
    decides = getattr(type(value).__torch_function__, "__func__", None)
    return decides is not None and not str(decides.__module__).startswith("torch.")


class MonitorWeakRef(weakref.ref[Any]):
    """A weak reference of the monitor, distinct from the weak references of the program."""

    __slots__ = ()


class VersionCheck:
    """Detects in-place changes of a tensor's data without keeping its memory.

    Views share the version counter of their base, and may outlive it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = MonitorWeakRef(tensor)
        self._counter = _version_counter(tensor)
        self._version = tensor_version(self._counter)

    def has_changed(self) -> bool:
        """True if the data has been changed in place since."""
        return tensor_version(self._counter) != self._version


def _version_counter(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that shares the version counter of another one, without its memory if possible."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_inference():
        return tensor
    counter = tensor.detach()
    if counter.layout is torch.strided:
        counter.data = counter.new_empty(0)
    return counter


def has_values(tensor: torch.Tensor) -> bool:
    """False for a lazy module's parameter that is not initialised yet."""
    return not is_instance(tensor, torch.nn.parameter.UninitializedTensorMixin)

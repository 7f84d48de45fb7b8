"""Which values are plain: compared by value, without parts that could change or alias."""

from __future__ import annotations

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

from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.dispatch import DisableTorchFunctionSubclass

HEAP_TYPE = 1 << 9
"""Of ``__flags__``: a class that was made while Python ran, as all classes in Python are."""
IMMUTABLE_TYPE = 1 << 8
"""A class whose attributes cannot be set, as those of native code. One made in Python can be."""

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
"""Things that are what they are: the guard asks for the same object."""


def proxied_mapping(proxy: types.MappingProxyType[Any, Any]) -> Any:
    """The mapping that a proxy shows, which Python itself does not hand out."""
    return gc.get_referents(proxy)[0]


def class_entries(cls: type) -> dict[str, Any]:
    """The dictionary in which a class keeps its own attributes."""
    entries: dict[str, Any] = proxied_mapping(_dict_of(cls))
    return entries


_dict_of = type.__dict__["__dict__"].__get__


def array_metadata(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """What a NumPy array tells of itself beside its contents; strides are in bytes."""
    return array.dtype, array.shape, array.strides, array.flags.num


def is_mutable_class(cls: type) -> bool:
    """Whether a class can be changed, as those made in Python; some native ones can, too."""
    return cls.__flags__ & (HEAP_TYPE | IMMUTABLE_TYPE) == HEAP_TYPE


def bind(method: Any, receiver: Any) -> Any:
    """A native method of an object. CPython crashes without the class where a method needs it."""
    return method.__get__(receiver, type(receiver))


def is_plain(value: Any) -> bool:
    """Whether a value is compared by value.

    A structured scalar of NumPy's can be changed, and so can an instance of a class in Python.
    """
    if type(value) in PLAIN_TYPES or is_instance(value, np.dtype):
        return True
    return is_instance(value, np.generic) and not (
        is_instance(value, np.void) or type(value).__flags__ & HEAP_TYPE
    )


def is_same_value(a: Any, b: Any) -> bool:
    """Whether no operation can tell two plain values apart, or two keys made of such.

    Numbers of other types may be equal, and so are 0.0 and -0.0, and an hour and 60 minutes of
    NumPy's. What is not plain stands for itself.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) in _TOLD_BY_EQUALITY:
        return bool(a == b)
    if type(a) in (tuple, frozenset):
        return len(a) == len(b) and all(map(is_same_value, a, b))
    if is_instance(a, np.generic):
        return is_plain(a) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    # Of a long pattern the text shows the beginning only, and NaN is not equal to itself.
    return is_plain(a) and repr(a) == repr(b) and (a == b or a != a)


def is_interned(value: Any) -> bool:
    """Whether there is but one object of a plain value, so that equal ones are the same."""
    if type(value) is int:
        return -5 <= value <= 256
    if type(value) in (str, bytes):
        return len(value) < 2 and (not value or type(value) is bytes or value < "\u0100")
    return type(value) in _SINGLE


_SINGLE = {
    type(None), bool, type(...), type(NotImplemented), torch.dtype, torch.layout,
    torch.memory_format,
}  # fmt: skip
_TOLD_BY_EQUALITY = (bool, int, str, bytes, torch.dtype, torch.device)


def is_identity(value: Any) -> bool:
    """Whether a value stands for itself, as a class or a built-in function does."""
    return is_instance(value, IDENTITY_TYPES)


def slot_names(cls: type) -> list[str]:
    """The names of the slots that an instance has for attributes; those of ``copyreg`` are the
    same, but it keeps them on the class, where the program would find them."""
    names = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if is_instance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}" if base.__name__.strip("_") else name
            if name not in ("__dict__", "__weakref__"):
                names.append(name)
    return names


def generator_states() -> list[tuple[torch.Generator, torch.Tensor]]:
    """Torch's own generators and their states: the CPU's, and those of GPUs that are in use."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.get_state()) for generator in (torch.default_generator, *on_gpus)]


def restore_generators(states: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    """Let generators go on from the states that :func:`generator_states` has given."""
    for generator, state in states:
        generator.set_state(state)


def storage_of(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory; 0 for a tensor that has none of the usual kind."""
    if tensor.layout != torch.strided:
        return 0
    with DisableTorchFunctionSubclass():
        return int(tensor.untyped_storage()._cdata)


def memory_span(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the memory of a tensor begins, and how many bytes it has; none for unusual kinds."""
    if tensor.layout != torch.strided or not has_values(tensor) or tensor.device.type != "cpu":
        return 0, 0
    with DisableTorchFunctionSubclass():
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()


def tensor_version(tensor: torch.Tensor) -> int:
    """How often a tensor's data was changed in place; inference tensors do not count."""
    with DisableTorchFunctionSubclass():  # some subclasses answer nothing
        return -1 if tensor.is_inference() else tensor._version


def overrides_torch_function(value: Any) -> bool:
    """Whether a class in Python decides what any operator makes of a tensor, and sees all of them.

    Those of torch itself do nothing else than what the operator does.
    """
    if type(value) in (torch.Tensor, torch.nn.Parameter) or not is_instance(value, torch.Tensor):
        return False
    decides = getattr(type(value).__torch_function__, "__func__", None)
    return decides is not None and not str(decides.__module__).startswith("torch.")


class MonitorWeakRef(weakref.ref[Any]):
    """A weak reference that is no part of the program, which may ask for its own."""

    __slots__ = ()


class VersionCheck:
    """Notices that a tensor's data was changed in place, without keeping its memory.

    Views of a tensor count their changes together with it, and may outlive it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = MonitorWeakRef(tensor)
        self._counter = _version_counter(tensor)
        self._version = tensor_version(self._counter)

    def has_changed(self) -> bool:
        return tensor_version(self._counter) != self._version


def _version_counter(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that counts changes together with another one and, if it can be, is empty."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_inference():
        return tensor
    counter = tensor.detach()
    if counter.layout is torch.strided:
        counter.data = counter.new_empty(0)
    return counter


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor is more than the place of a parameter that is made later."""
    return not is_instance(tensor, torch.nn.parameter.UninitializedTensorMixin)

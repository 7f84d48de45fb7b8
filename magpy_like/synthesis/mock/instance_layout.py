"""Native layout of instances: the class in C that allocates an instance and stores its state."""

from __future__ import annotations

import struct
import types

from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE

_WORD = struct.calcsize("P")
_MANAGED = -1
"""The `__dictoffset__` of instances whose dictionary is stored before the object."""


def native_layout(cls: type) -> type:
    """The native class that allocates the instances of ``cls`` and determines their layout."""
    for base in cls.__mro__:
        maker = base.__dict__.get("__new__")
        native_maker = maker is not None and not is_instance(
            maker, staticmethod | types.FunctionType
        )
        if native_maker or not base.__flags__ & HEAP_TYPE or _keeps_native_state(base):
            return base
    return object


def _keeps_native_state(cls: type) -> bool:
    """True if instances are larger than their slots account for, as those of `KeyWrapper` are."""
    base = cls.__base__
    assert base is not None
    slots = cls.__dict__.get("__slots__", ())
    names = {slots} if is_instance(slots, str) else set(slots)
    words = len(names - {"__dict__", "__weakref__"})
    words += cls.__dictoffset__ not in (0, _MANAGED) and not base.__dictoffset__
    words += cls.__weakrefoffset__ > 0 >= base.__weakrefoffset__
    return cls.__basicsize__ > base.__basicsize__ + words * _WORD

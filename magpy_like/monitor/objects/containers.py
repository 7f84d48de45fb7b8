"""Contents of containers, read without calling the methods of a subclass in Python.

The methods of a subclass are the program's: they run when the program calls them, and never because
the monitor or a guard inspects an instance.
"""

from __future__ import annotations

import collections
import enum
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from magpy_like.native import dict_of, frame_locals, lookup_in_type, ordered_keys, stored_hashes
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import (
    HEAP_TYPE,
    PLAIN_TYPES,
    is_identity,
    is_mutable_class,
    is_plain,
    overrides_torch_function,
)
from magpy_like.split_points import unknown_value_split
from magpy_like.split_reasons import SplitReason

NATIVE_TYPES = PLAIN_TYPES | {
    list, tuple, dict, set, frozenset, slice, type(iter([])), type(iter(())), type(iter({})),
    zip, enumerate, map, filter, reversed,
}  # fmt: skip
"""Types whose attributes are native code and depend on nothing that the guard does not check."""

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
SCALARS = (int, float, complex, str, bytes)
"""Types whose subclasses' instances have a value beside their attributes."""


def elements(value: Any) -> list[Any]:
    """The elements of a built-in container or an instance of a subclass; a dictionary's values."""
    if is_instance(value, dict):
        return list(dict.values(value))
    if is_instance(value, list):
        return list.__getitem__(value, slice(None))
    base = next((kind for kind in _ITERATED if is_instance(value, kind)), None)
    return list(value if base is None else base.__iter__(value))


_ITERATED: tuple[Any, ...] = (tuple, set, frozenset, collections.deque)


def length_of(value: Any) -> int:
    """The number of elements of a built-in container or an instance of a subclass."""
    base: Any = next(kind for kind in CONTAINERS if is_instance(value, kind))
    return int(base.__len__(value))


def overrides_iteration(value: Any) -> bool:
    """True if native code that iterates over a container runs Python code of its class."""
    if type(value) in CONTAINERS:
        return False
    methods = (lookup_in_type(type(value), name) for name in ("__iter__", "__getitem__", "__len__"))
    return any(is_instance(method, types.FunctionType) for method in methods)


def items_of(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values in the order of iteration of the built-in class."""
    if is_instance(mapping, collections.OrderedDict):  # keeps an order of its own
        values = {id(key): value for key, value in dict.items(mapping)}
        return [(key, values[id(key)]) for key in ordered_keys(mapping)]
    return list(dict.items(mapping))


def copy_of(mapping: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary of the same items in the same order."""
    return dict_with_known_hashes(items_of(mapping), mapping)


def dict_with_known_hashes(items: Sequence[tuple[Any, Any]], container: Any) -> dict[Any, Any]:
    """A dictionary of these items, with the hashes that ``container`` stores of their keys: no key
    is hashed again."""
    hashes = hashes_of(container)
    keys = tuple(key for key, _ in items)
    return dict_of(keys, tuple(hashes[id(key)] for key in keys), tuple(v for _, v in items))


def hashes_of(container: Any) -> dict[int, int]:
    """The hashes that a dictionary or set stores of its keys, by the keys' ids."""
    return {id(key): number for key, number in stored_hashes(container)}


def hashes_in_python(key: Any) -> bool:
    """True if a look-up of a key runs the program's code, which may have effects."""
    if is_instance(key, tuple | frozenset):
        if any(map(hashes_in_python, elements(key))):
            return True
    elif is_plain(key):
        return False  # methods in Python of plain values have no effects
    methods = (lookup_in_type(type(key), name) for name in ("__hash__", "__eq__"))
    return any(is_instance(m, types.FunctionType) and m not in _QUIET for m in methods)


def any_hashes_in_python(container: Any) -> bool:
    """True if a look-up in a dictionary or set may run Python code of its keys or members."""
    keys = dict.keys(container) if is_instance(container, dict) else elements(container)
    odd = set(map(type, keys)) - PLAIN_TYPES
    return bool(odd) and any(hashes_in_python(key) for key in keys if type(key) in odd)


_QUIET = (enum.Enum.__dict__["__hash__"], torch.Tensor.__hash__)


def plain_key(key: Any) -> Any:
    """A dictionary key or set member that a guard can look up again.

    Raises:
        Split: the key has an equality of its own, or an identity that a later call does not share.
    """
    if is_plain(key):
        return key
    if hashes_in_python(key):
        raise unknown_value_split(
            key, SplitReason.UNGUARDABLE_KEY, f"looks up a {type(key).__qualname__} as a key"
        )
    if is_identity(key) or is_instance(key, types.FunctionType | torch.nn.Module):
        return key
    if is_instance(key, weakref.ref) and is_identity(key()) and not hashes_in_python(key()):
        return key  # equal to any other reference to the same object
    if type(key) in (tuple, frozenset):
        for item in key:
            plain_key(item)
        return key
    raise unknown_value_split(
        key, SplitReason.UNGUARDABLE_KEY, f"looks up a {type(key).__qualname__} as a key"
    )


def is_compared_by_identity(key: Any) -> bool:
    """True if a key equals only itself."""
    if is_instance(key, torch.Tensor):
        return type(key).__hash__ is torch.Tensor.__hash__ and not overrides_torch_function(key)
    if is_plain(key) or is_identity(key):
        return False
    cls = type(key)
    return (
        lookup_in_type(cls, "__eq__") is object.__eq__
        and lookup_in_type(cls, "__hash__") is object.__hash__
    )


def arguments_of(exception: BaseException) -> tuple[Any, ...]:
    """The arguments of an exception, which native code reads in order to show it."""
    args: tuple[Any, ...] = _args.__get__(exception)
    return args


_args = BaseException.__dict__["args"]


def holds_only_arguments(exception: BaseException) -> bool:
    """True if the native part of an exception has no other state, as that of ``OSError`` has."""
    native = next(c for c in type(exception).__mro__ if not c.__flags__ & HEAP_TYPE)
    return native.__basicsize__ == BaseException.__basicsize__


def exposes_only_identity(value: Any) -> bool:
    """True if native code can read only a variable's type and identity.

    It reads instances of Python classes through methods in Python, which the monitor follows.
    """
    return (
        is_identity(value)
        or is_instance(value, types.FunctionType | types.MethodType | super)
        or is_mutable_class(type(value))
    )


def cell_at(frame: types.FrameType, slot: int) -> types.CellType | None:
    """The cell in a slot of a frame's locals; None for any other value."""
    found = frame_locals(frame)[slot]
    return found if is_instance(found, types.CellType) else None

"""Values as comparable data, to any depth.

``freeze`` converts a value to nested tuples, which are equal if no operation on values
distinguishes the originals. Named objects are replaced by their names, so that results of two runs
on different objects can be compared.
"""

from __future__ import annotations

import collections
import contextvars
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch

ITEMS_OF_AN_ITERATOR = 20
Names = Mapping[int, tuple[Any, ...]]

_SCALARS = (type(None), bool, int, str, bytes, complex, type(Ellipsis), range)
_BY_IDENTITY = (type, types.ModuleType)
_OPAQUE = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)


class Marker:
    """A value without any property but its identity."""

    __slots__ = ("__weakref__",)

    def __deepcopy__(self, memo: object) -> Marker:
        return self

    def __repr__(self) -> str:
        return "Marker()"


class Cell:
    """An object with attributes, for operations on attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def freeze(value: Any, names: Names | None = None) -> Any:
    """A value as nested tuples; objects in ``names`` (by id) are replaced by their names."""
    return _Freezer(names or {}).freeze(value)


class _Freezer:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.open: dict[int, int] = {}

    def freeze(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, _SCALARS):
            return (kind.__name__, repr(value))
        if isinstance(value, float):
            return (kind.__name__, value.hex())
        if id(value) in self.names:
            return ("input", self.names[id(value)])
        if isinstance(value, (*_BY_IDENTITY, *_OPAQUE)):
            return ("object", id(value))
        if id(value) in self.open:
            return ("cycle", self.open[id(value)])
        self.open[id(value)] = len(self.open)
        try:
            return (kind.__qualname__, self.contents(value))
        finally:
            del self.open[id(value)]

    def contents(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, types.CellType):
            return self.freeze(value.cell_contents)
        if isinstance(value, contextvars.ContextVar):
            return (value.name, self.freeze(value.get(None)))
        if isinstance(value, numpy.ndarray):
            if value.dtype == object:
                return ("array", value.shape, tuple(map(self.freeze, value.flat)))
            return ("array", value.shape, str(value.dtype), value.tobytes())
        if isinstance(value, numpy.generic):
            return (str(value.dtype), value.tobytes())
        if isinstance(value, list | tuple | collections.deque):
            return (*map(self.freeze, value), self.attributes(value))
        if isinstance(value, set | frozenset):
            return (tuple(sorted(map(repr, map(self.freeze, value)))), self.attributes(value))
        if isinstance(value, dict | types.MappingProxyType):
            pairs = tuple((self.freeze(k), self.freeze(v)) for k, v in value.items())
            return (*pairs, self.attributes(value))
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, slice):
            return tuple(map(self.freeze, (value.start, value.stop, value.step)))
        if isinstance(value, types.MethodType):
            return (self.freeze(value.__self__), self.freeze(value.__func__))
        if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
            return (self.freeze(value.__self__), value.__name__)
        if isinstance(value, types.CodeType):
            return hash(value)
        if isinstance(value, types.FunctionType):
            return (hash(value.__code__), id(value.__closure__))
        if isinstance(value, Marker):
            return "marker"
        if isinstance(value, BaseException):
            links = (value.__cause__, value.__context__, value.__suppress_context__)
            return (*map(self.freeze, (value.args, *links)), self.attributes(value))
        if isinstance(value, Iterator):
            return self.state_of_iterator(value)
        return self.state(value)

    def attributes(self, value: Any) -> Any:
        state = getattr(value, "__dict__", None)
        return () if not state else tuple((k, self.freeze(v)) for k, v in state.items())

    def state_of_iterator(self, value: Any) -> Any:
        """The position of an iterator, read without advancing it."""
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            return None if frame is None else frame.f_lasti
        try:
            return tuple(map(self.freeze, value.__reduce__()))
        except Exception:
            return self.state(value)

    def state(self, value: Any) -> Any:
        parts = [self.attributes(value)]
        for base in type(value).__mro__:
            for name in base.__dict__.get("__slots__", ()):
                if isinstance(name, str) and hasattr(value, name):
                    parts.append((name, self.freeze(getattr(value, name))))
        if len(parts) > 1 or parts[0]:
            return tuple(parts)
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            text = repr(value)
            return None if " at 0x" in text else text
        return tuple(map(self.freeze, reduced)) if isinstance(reduced, tuple) else reduced


def _tensor(value: torch.Tensor) -> Any:
    meta = (tuple(value.shape), str(value.dtype), str(value.device), str(value.layout))
    if value.layout is not torch.strided or value.device.type == "meta":
        dense = None if value.device.type == "meta" else value.detach().to_dense()
        return (*meta, value.requires_grad, None if dense is None else _data(dense))
    grad = value.grad if value.is_leaf else None
    return (
        *meta,
        value.stride(),
        value.requires_grad,
        _data(value.detach()),
        None if grad is None else _tensor(grad),
    )


def _data(value: torch.Tensor) -> Any:
    if value.is_quantized:
        value = value.int_repr()
    value = value.resolve_conj().resolve_neg()
    if value.dtype.is_floating_point or value.dtype.is_complex:
        # All NaNs are one value.
        value = torch.where(value == value, value, torch.full_like(value, float("nan")))
    # A copy: an array makes its memory impossible to resize, and torch, which changes a tensor's
    # shape before it notices that, leaves a tensor larger than its memory (2.11 to 2.15).
    copy = value.clone(memory_format=torch.contiguous_format)
    return copy.flatten().view(torch.uint8).numpy().tobytes()


def name_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Names of the inputs and their contents, to a depth of three, by id.

    Only objects with a meaningful identity have one: a small number or an empty tuple may occur
    anywhere.
    """
    names: dict[int, tuple[Any, ...]] = {}

    def visit(value: Any, name: tuple[Any, ...]) -> None:
        if isinstance(value, (*_SCALARS, float, numpy.generic, *_BY_IDENTITY, *_OPAQUE)):
            return
        if isinstance(value, tuple) and not value:
            return
        names.setdefault(id(value), name)
        if len(name) >= 4:
            return
        for key, part in children(value):
            visit(part, (*name, key))

    for position, value in enumerate(args):
        visit(value, (position,))
    for keyword, value in kwargs.items():
        visit(value, (keyword,))
    return names


def children(value: Any) -> list[tuple[Any, Any]]:
    """The direct contents of a value, by name."""
    if isinstance(value, torch.Tensor | numpy.ndarray):
        return []
    if isinstance(value, dict | types.MappingProxyType):
        return [(freeze(key), part) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return list(enumerate(value))
    if isinstance(value, Cell):
        return list(vars(value).items())
    return []


def unrolled(value: Any) -> Any:
    """A result with iterators replaced by their items."""
    if isinstance(value, Iterator):
        return (type(value).__name__, list(itertools.islice(value, ITEMS_OF_AN_ITERATOR)))
    return value


def has_value(value: Any) -> bool:
    """True if an object is compared by value, False if by identity."""
    kind = type(value)
    return kind.__eq__ is not object.__eq__ or isinstance(value, torch.Tensor)


def copied(value: Any, keep: Callable[[Any], bool] = lambda value: False) -> Any:
    """An equal copy without shared mutable parts, except those that ``keep`` selects."""
    memo: dict[int, Any] = {}

    def visit(value: Any) -> Any:
        if id(value) in memo:
            return memo[id(value)][1]
        copy = value if keep(value) else _copy(value, visit)
        memo[id(value)] = (value, copy)
        return copy

    return visit(value)


def _copy(value: Any, visit: Callable[[Any], Any]) -> Any:
    import copy

    kind = type(value)
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided and not value.is_quantized
        if value._base is not None or not value.is_leaf or not strided:
            result = value.detach().clone()
        else:
            result = torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=value.device
            )
            result.copy_(value.detach())
        return result.requires_grad_(value.requires_grad)
    if kind in (list, tuple, set, frozenset):
        return kind(map(visit, value))
    if kind is dict:
        return {key: visit(part) for key, part in value.items()}
    if kind is Cell:
        return Cell(**{key: visit(part) for key, part in vars(value).items()})
    if isinstance(value, types.GeneratorType | types.ModuleType | types.MethodType | type):
        return value
    if kind is types.BuiltinMethodType or isinstance(value, numpy.dtype | numpy.generic):
        return value
    if kind is types.MappingProxyType:
        return types.MappingProxyType({key: visit(part) for key, part in value.items()})
    try:
        return copy.deepcopy(value)
    except Exception:
        return value

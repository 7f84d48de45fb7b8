"""Variations of a value that an operation must not distinguish from it.

For example, for an input annotated ``value_read: LENGTH``, a list of the same length with other
elements.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from magpy_like.annotation.schema import ValueRead
from magpy_like.annotation.verify.snapshot import Cell, Marker, copied

NOTHING = object()  # the type has no other value


def vary(value: Any, read: ValueRead, keep: Any = NOTHING) -> Any:
    """A value that differs only in parts that ``read`` does not cover, or NOTHING.

    ``keep`` is the key, index or attribute that a relation of the operation covers.
    """
    if read is ValueRead.NONE:
        return Marker()
    return _VARIATIONS[read](value, keep)


def vary_data(value: torch.Tensor) -> list[torch.Tensor]:
    """Tensors with the same metadata and other data within the same range."""
    data = value.detach()
    if value.layout is not torch.strided or value.is_quantized or not value.numel():
        return []
    if value.dtype is torch.bool:
        others = [~data, torch.zeros_like(data), torch.ones_like(data)]
    elif value.dtype.is_floating_point or value.dtype.is_complex:
        others = [data * 0.5, data * (torch.arange(data.numel()) % 2).view(data.shape)]
    else:
        order = torch.arange(data.numel() - 1, -1, -1)
        others = [data.flatten()[order].view(data.shape), torch.zeros_like(data)]
    result = []
    for other in others:
        copy = copied(value).detach()
        copy.copy_(other.to(data.dtype))
        result.append(copy.requires_grad_(value.requires_grad))
    return result


def _same_type(value: Any, keep: Any) -> Any:
    if isinstance(value, torch.Tensor):
        others = vary_data(value)
        return others[0] if others else NOTHING
    if isinstance(value, bool) or value is None:
        return not value if isinstance(value, bool) else NOTHING
    if isinstance(value, dict):
        copy = value.copy()
        for key in list(copy):
            if keep is NOTHING:
                del copy[key]
            else:
                copy[key] = Marker()
        copy["another key"] = Marker()
        return copy
    if isinstance(value, set):
        return value | {"another member", Marker()} if keep is not NOTHING else {Marker()}
    if isinstance(value, Cell):
        attributes = dict.fromkeys(vars(value), None) if keep is not NOTHING else {}
        return Cell(**{name: Marker() for name in attributes}, another_attribute=Marker())
    if type(value) in (list, tuple, collections.deque):
        if keep is not NOTHING:
            return _same_length(value, keep)
        return type(value)([Marker(), Marker(), *value])
    if type(value) is torch.Size:
        return torch.Size([*(n + 7 for n in value)]) if value else NOTHING
    if type(value) in (int, float):
        return value + 7
    if type(value) in (str, bytes, bytearray):
        return value + value[:0].join([b"zz" if isinstance(value, bytes | bytearray) else "zz"])
    return NOTHING


def _same_length(value: Any, keep: Any) -> Any:
    if type(value) in (list, tuple, collections.deque):
        return type(value)(Marker() for _ in value)
    if isinstance(value, dict):
        return type(value)((Marker(), Marker()) for _ in value)
    if isinstance(value, set | frozenset):
        return type(value)(Marker() for _ in value)
    if isinstance(value, str):
        return "~" * len(value)
    if isinstance(value, torch.Tensor):
        return _same_type(value, keep)
    return NOTHING


def _same_keys(value: Any, keep: Any) -> Any:
    if isinstance(value, dict):
        copy = value.copy()
        for key in copy:
            copy[key] = Marker()
        return copy
    return NOTHING


def _same_parts(depth: int) -> Callable[[Any, Any], Any]:
    """The value itself, with the parts deeper than ``depth`` changed in place."""

    def variation(value: Any, keep: Any) -> Any:
        return value if _change_below(value, depth) else NOTHING

    return variation


def _change_below(value: Any, depth: int) -> bool:
    if depth == 0:
        return _change(value)
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        parts = list(value)
    changed = [_change_below(part, depth - 1) for part in parts]  # all of them
    return any(changed)


def _change(value: Any) -> bool:
    """Change an object in place; True if that is possible."""
    if isinstance(value, torch.Tensor):
        others = vary_data(value)
        if others:
            value.detach().copy_(others[0].detach())
        return bool(others)
    if isinstance(value, list | collections.deque):
        value.append("another element")
        return True
    if isinstance(value, dict):
        value["another key"] = Marker()
        return True
    if isinstance(value, set):
        value.add("another member")
        return True
    if isinstance(value, Cell):
        value.another_attribute = Marker()  # type: ignore[attr-defined]
        return True
    return False


_VARIATIONS: dict[ValueRead, Callable[[Any, Any], Any]] = {
    ValueRead.IDENTITY: _same_parts(0),
    ValueRead.TYPE: _same_type,
    ValueRead.LENGTH: _same_length,
    ValueRead.KEYS: _same_keys,
    ValueRead.ELEMENTS: _same_parts(1),
    ValueRead.PAIRS: _same_parts(2),
    ValueRead.ALL: lambda value, keep: NOTHING,
}

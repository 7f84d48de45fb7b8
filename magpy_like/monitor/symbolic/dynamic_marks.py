"""Dimensions of tensors that the user marked as dynamic or static.

The marks of ``torch._dynamo.mark_dynamic`` and the like are attributes of the tensor. They mean
here what torch documents:

- ``mark_dynamic``: dynamic; a program that specializes the size raises
- ``mark_unbacked``: the same, as a program cannot decide by such a size
- ``maybe_mark_dynamic``: dynamic, unless the program specializes the size
- ``mark_static``: never dynamic, unless it is marked as dynamic
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, cast

import torch
from torch.utils.weak import WeakIdKeyDictionary

from magpy_like.errors import DimensionError
from magpy_like.native.instance_checks import is_instance

_STRICT = (
    "_dynamo_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
)
_WEAK = ("_dynamo_weak_dynamic_indices",)
_STATIC = ("_dynamo_static_indices",)
"""Attributes of tensors that torch's functions set: *seen* on torch 2.13."""

_marks = WeakIdKeyDictionary()  # tensors do not compare as keys should


def mark_dimension(tensor: torch.Tensor, dim: int) -> None:
    """Mark a dimension as dynamic.

    Raises:
        DimensionError: the tensor has no such dimension.
    """
    if not -tensor.dim() <= dim < tensor.dim():
        fault = f"a tensor of {tensor.dim()} dimensions has no such dimension"
        raise DimensionError("mark_dynamic", "dim", dim, fault)
    _marks.setdefault(tensor, set()).add(dim % tensor.dim())


def marked_dimensions(tensor: torch.Tensor) -> Collection[int]:
    """The dimensions that must be dynamic."""
    own: Collection[int] = _marks.get(tensor, ()) if _marks else ()
    return {*own, *_marks_of_torch(tensor, _STRICT)}


def wished_dimensions(tensor: torch.Tensor) -> Collection[int]:
    """The dimensions that are dynamic if the program allows it."""
    return _marks_of_torch(tensor, _WEAK)


def static_dimensions(tensor: torch.Tensor) -> Collection[int]:
    """The dimensions that are marked as static."""
    return _marks_of_torch(tensor, _STATIC)


def _marks_of_torch(tensor: torch.Tensor, names: tuple[str, ...]) -> set[int]:
    found = tensor.__dict__
    dims = {dim for name in names if name in found for dim in found[name]}
    return {dim % tensor.dim() for dim in dims if -tensor.dim() <= dim < tensor.dim()}


def may_have_marks(values: Iterable[object]) -> bool:
    """True if ``mark_dimension`` has marked a live tensor, or torch one of these or one in them.

    Lists, tuples and dictionaries are looked into; they may contain themselves.
    """
    if _marks:
        return True
    pending, seen = [*values], set[int]()
    while pending:
        value = pending.pop()
        if is_instance(value, torch.Tensor):
            if any(name in value.__dict__ for name in (*_STRICT, *_WEAK, *_STATIC)):
                return True
        elif type(value) in (list, tuple, dict) and id(value) not in seen:
            seen.add(id(value))
            items = cast(Any, value)
            pending += items.values() if type(value) is dict else items
    return False

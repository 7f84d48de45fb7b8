"""Dimensions of tensors that the user marked as dynamic."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.utils.weak import WeakIdKeyDictionary

from magpy_like.errors import DimensionError

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
    """The marked dimensions of a tensor."""
    found: Collection[int] = _marks.get(tensor, ())
    return found


def has_marked_tensors() -> bool:
    """True if a live tensor has marked dimensions."""
    return bool(_marks)

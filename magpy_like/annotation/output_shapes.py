"""Data-dependent output shapes: calls of operators whose shape is not known from the inputs'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from magpy_like.annotation.schema import Annotation, DataShape


def shape_depends_on_data(
    annotation: Annotation, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """True if guards on the inputs' shapes do not determine the shape of this call's output.

    For example ``x[mask]``, ``nonzero``, ``repeat_interleave``: a tensor's data determines the
    number of elements. ``args`` begins with the receiver.
    """
    match annotation.output.shape_from_data:
        case DataShape.NEVER:
            return False
        case DataShape.ALWAYS:
            return True
        case DataShape.ONE_ARGUMENT:
            return len(args) + len(kwargs) == 1
        case DataShape.SIZE_NOT_GIVEN:
            sizes = (*args[1:], *kwargs.values())
            return not sizes or any(isinstance(size, int) and size < 0 for size in sizes)
        case DataShape.TENSOR_ARGUMENT:
            if kwargs.get("output_size") is not None:
                return False
            others = (*args[1:], *kwargs.values())
            return not others or any(isinstance(value, torch.Tensor) for value in others)
        case DataShape.MASK_INDEX:
            return len(args) > 1 and isinstance(args[0], torch.Tensor) and _has_mask(args[1])


def _has_mask(index: Any) -> bool:
    if isinstance(index, torch.Tensor):
        return index.dtype in (torch.bool, torch.uint8)
    # A lone True or False adds a dimension of known size; lists of them are masks of known values.
    return isinstance(index, tuple | list) and any(_has_mask(part) for part in index)

"""The order of a tensor's dimensions in memory, by the hints of its sizes and strides."""

from __future__ import annotations

from typing import Any

import torch

from magpy_like.compiler.passes.graph_queries import is_known_equal


def hint(size: Any) -> int | None:
    """The size; of a symbolic one its hint, None if it is data-dependent."""
    if isinstance(size, torch.SymInt):
        known = size.node.hint
        return known if isinstance(known, int) else None
    return int(size)


def size_hints(tensor: torch.Tensor) -> list[int] | None:
    """The hints of all sizes; None if one is data-dependent."""
    found = [known for size in tensor.shape if (known := hint(size)) is not None]
    return found if len(found) == tensor.dim() else None


def is_channels_last(image: torch.Tensor) -> bool:
    """True for channels-last; torch before 2.13 does not recognise it for symbolic sizes."""
    if image.is_contiguous(memory_format=torch.channels_last):
        return True
    return image.dim() == 4 and dim_order(image) == [0, 2, 3, 1]


def dim_order(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions of a dense tensor, outermost first; None if it has gaps."""
    if any(hint(step) is None for step in tensor.stride()):
        return None
    order = sorted(range(tensor.dim()), key=lambda d: -(hint(tensor.stride(d)) or 0))
    step: Any = 1
    for d in reversed(order):
        if not is_known_equal(tensor.stride(d), step):
            return None
        step = step * tensor.shape[d]
    return order

"""Operators that write to memory that they read otherwise: ``x.mul_(x[0])``.

Eager mode reads some elements before and others after they are written, by the order in which a
kernel goes through memory; for most such calls it raises an error instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def has_overlapping_writes(run: Callable[[], object]) -> bool:
    """True if an operator that ``run()`` executes writes to a part of what it reads."""
    with _Overlaps() as mode:
        run()
    return mode.found


class _Overlaps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if operator._schema.is_mutable:
            written, read = [], []
            for formal, value in zip(operator._schema.arguments, args, strict=False):
                info = formal.alias_info
                tensors = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
                (written if info is not None and info.is_write else read).extend(tensors)
            self.found |= any(_overlap(a, b) for a in written for b in read)
        return operator(*args, **kwargs)


def _overlap(written: torch.Tensor, read: torch.Tensor) -> bool:
    """True if two tensors share memory that they do not lay out alike."""
    if written.layout is not torch.strided or read.layout is not torch.strided:
        return False
    if written.untyped_storage().data_ptr() != read.untyped_storage().data_ptr():
        return False
    if _layout(written) == _layout(read) or not written.numel() or not read.numel():
        return False
    (a, b), (c, d) = _extent(written), _extent(read)
    return a < d and c < b


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.data_ptr(), tensor.dtype


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes from a tensor's first element to the end of its last."""
    steps = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()

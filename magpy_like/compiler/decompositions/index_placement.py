"""Placement by index: scatters, masks, unpooling, and the backward passes of padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.registration import (
    register_decomposition,
    torch_decomposition,
)
from magpy_like.compiler.lowering.value_checks import INDICES
from magpy_like.torch_compat.decompositions import suggest_memory_format
from magpy_like.torch_compat.operators import check_condition

aten = torch.ops.aten


@register_decomposition(aten.put.default)
def _put(a: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if a.numel() == 0 or a.dtype == torch.bool:
        return NotImplemented
    flat = a.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate)
    return aten.copy(torch.empty_like(a), flat.view(a.shape))


@register_decomposition(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def _index_fill(a: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """torch 2.11 decomposes to writes to a tensor of eager's strides, which AOTAutograd refuses."""
    if index.dim() > 1 or index.dtype != torch.int64:
        return NotImplemented
    if not isinstance(value, Tensor):
        value = aten.scalar_tensor(value, dtype=a.dtype, device=a.device)
    elif (value.dtype, value.dim()) != (a.dtype, 0):
        return NotImplemented
    if a.dim() == 0:
        return aten.index_put(a.reshape(1), [index.reshape(-1)], value).reshape(())
    where: list[Tensor | None] = [None] * (dim % a.dim())
    return aten.index_put(a, [*where, index.reshape(-1)], value)


@register_decomposition(aten.masked_scatter_backward.default)
def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The gradients under the mask, in order, and zeros."""
    count = math.prod(sizes)
    if grad.numel() == 0 or count == 0:
        return NotImplemented
    kept = mask.expand(grad.shape).reshape(-1)
    target = torch.where(kept, kept.to(torch.int64).cumsum(0) - 1, count).clamp(max=count)
    result = grad.new_zeros([count + 1]).index_put([target], grad.reshape(-1))
    return result[:count].reshape(list(sizes))


@register_decomposition(aten.nonzero_static.default)
def _nonzero_static(a: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    by_columns = a.device.type == "cuda"  # eager's memory layout there
    if a.numel() == 0 or a.dim() == 0 or size == 0:
        if by_columns:
            return a.new_full([a.dim(), size], fill_value, dtype=torch.int64).t()
        return a.new_full([size, a.dim()], fill_value, dtype=torch.int64)
    found = (a != 0).reshape(-1)
    order = found.to(torch.int64).cumsum(0) - 1
    target = torch.where(found, order.clamp(max=size), size)
    rest = torch.arange(found.numel(), device=a.device)
    columns = []
    for extent in reversed(a.shape):
        column = torch.full([size + 1], fill_value, dtype=torch.int64, device=a.device)
        columns.append(column.index_put([target], rest % extent)[:size])
        rest = rest // extent
    return torch.stack(columns[::-1]).t() if by_columns else torch.stack(columns[::-1], 1)


def _unpooled(operator: Any, a: Tensor, index: Tensor, size: Sequence[Any], *args: Any) -> Tensor:
    """Torch's decomposition, with indices checked: it counts negative ones from the end."""
    index = INDICES(index, math.prod(size))
    return torch_decomposition(operator)(a, index, size, *args)


@register_decomposition(aten.max_unpool3d.default)
def _max_unpool3d(a: Tensor, index: Tensor, size: Sequence[Any], *args: Any) -> Tensor:
    return _unpooled(aten.max_unpool3d.default, a, index, size, *args)


@register_decomposition(aten.max_unpool2d.default)
def _max_unpool2d(a: Tensor, index: Tensor, size: Sequence[Any]) -> Tensor:
    """In the memory layout of eager's CPU kernel."""
    result = _unpooled(aten.max_unpool2d.default, a, index, size)
    kept = suggest_memory_format(a) if a.device.type == "cpu" else torch.contiguous_format
    return result.contiguous(memory_format=kept)


def _replication_pad_backward(grad: Tensor, a: Tensor, padding: Sequence[Any]) -> Tensor:
    """Every element sums the gradients of its copies."""
    rank = len(padding) // 2
    if 0 in a.shape or 0 in grad.shape:
        return torch.zeros_like(a)
    index: list[Tensor | None] = [None] * a.dim()
    for k in range(rank):
        dim = a.dim() - 1 - k
        at = torch.arange(grad.shape[dim], device=grad.device) - padding[2 * k]
        shape = [-1] + [1] * k
        index[dim] = at.clamp(0, a.shape[dim] - 1).reshape(shape)
    return aten._unsafe_index_put(torch.zeros_like(a), index, grad, True)


for _rank in (1, 2, 3):
    register_decomposition(getattr(aten, f"replication_pad{_rank}d_backward").default)(
        _replication_pad_backward
    )


def _reflection_pad(operator: Any) -> None:
    @register_decomposition(operator)
    def checked(a: Tensor, padding: Sequence[Any]) -> Any:
        """Torch's decomposition, with a check that the dimension is longer than the padding, which
        it omits for data-dependent sizes; eager checks it."""
        for k, width in enumerate(padding):
            check_condition(width < a.shape[a.dim() - 1 - k // 2])
        return torch_decomposition(operator)(a, padding)


def _reflection_pad_backward(grad: Tensor, a: Tensor, padding: Sequence[Any]) -> Tensor:
    """Reflected gradients are folded back, dimension by dimension.

    Torch's decomposition reads all nine parts of an image for every element, from computed indices.
    """
    if 0 in a.shape or 0 in grad.shape or any(width < 0 for width in padding):
        return torch_decomposition(aten.reflection_pad2d_backward.default)(grad, a, padding)
    for k in reversed(range(len(padding) // 2)):
        dim = a.dim() - 1 - k
        extent, (low, high) = a.shape[dim], padding[2 * k : 2 * k + 2]
        inner = grad.narrow(dim, low, extent)
        if low:
            left = grad.narrow(dim, 0, low).flip(dim)
            inner = inner + aten.constant_pad_nd(left, [0, 0] * k + [1, extent - 1 - low])
        if high:
            right = grad.narrow(dim, low + extent, high).flip(dim)
            inner = inner + aten.constant_pad_nd(right, [0, 0] * k + [extent - 1 - high, 1])
        grad = inner
    return grad


for _rank in (1, 2, 3):
    _reflection_pad(getattr(aten, f"reflection_pad{_rank}d").default)
    register_decomposition(getattr(aten, f"reflection_pad{_rank}d_backward").default)(
        _reflection_pad_backward
    )

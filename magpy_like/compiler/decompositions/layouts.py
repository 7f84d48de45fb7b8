"""Operators whose results torch's decompositions or fake tensors lay out unlike eager's kernels.

Some kernels for the CPU keep only the layout where channels are last, and write any other result
row by row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    suggest_memory_format,
)
from torch.fx.experimental.symbolic_shapes import statically_known_true

from magpy_like.compiler.decompositions.table import Function, means

aten = torch.ops.aten

BATCH_NORMS = [
    aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional,
]  # fmt: skip


def _as_channels(result: Tensor, a: Tensor) -> Tensor:
    if a.device.type != "cpu":
        return result
    return result.contiguous(memory_format=suggest_memory_format(a))


def _batch_norm(meant: Function) -> Function:
    @functools.wraps(meant)
    def batch_norm(a: Tensor, *args: Any, **kwargs: Any) -> Any:
        result, *rest = meant(a, *args, **kwargs)
        return _as_channels(result, a), *rest

    return batch_norm


for _operator, _meant in get_decompositions(BATCH_NORMS).items():
    means(_operator)(_batch_norm(_meant))


@means(aten.channel_shuffle.default)
def _channel_shuffle(a: Tensor, groups: Any) -> Tensor:
    meant = get_decompositions([aten.channel_shuffle])
    return _as_channels(meant[aten.channel_shuffle.default](a, groups), a)


@means(aten.roll.default)
def _roll(a: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """Without dimensions, eager rolls what it has made one row of; and where nothing comes round,
    the empty part that it joins has no channels last."""
    result = get_decompositions([aten.roll])[aten.roll.default](a, shifts, dims)
    if not dims or statically_known_true(a.numel() == 0):
        return result
    stays = (shift % a.shape[dim] == 0 for shift, dim in zip(shifts, dims, strict=True))
    return result if any(map(statically_known_true, stays)) else _as_channels(result, a)


@means(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(a: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Eager's result lies as its indices do, which fake tensors take to be contiguous."""
    given = [index for index in indices if index is not None]
    if all(index.dim() < 2 or index.is_contiguous() for index in given):
        return NotImplemented
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return NotImplemented  # how many elements the masks choose only a run tells
    result = aten.index(a, [None if i is None else i.contiguous() for i in indices])
    common = torch.broadcast_tensors(*given)
    if a.device.type != "cpu" and len({index.stride() for index in common}) > 1:
        return result
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if adjacent else 0
    kept = [dim for dim in range(a.dim()) if dim not in dims]
    # The operands as eager's loop steps through them; for the elements of `a` that it looks up, the
    # step of an indexed dimension is zero.
    before, after = kept[:first], kept[first:]
    steps = [*(a.stride(d) for d in before), *[0] * common[0].dim(), *(a.stride(d) for d in after)]
    looked_up = a.as_strided(result.shape, steps)
    places = [
        index.reshape([1] * len(before) + list(index.shape) + [1] * len(after)).expand_as(result)
        for index in common
    ]
    order, _ = compute_elementwise_output_logical_to_physical_perm(looked_up, *places)
    back = [order.index(dim) for dim in range(len(order))]
    return result.permute(order).contiguous().permute(back)


def _logical(operator: Any, of_truths: Any) -> None:
    @means(operator)
    def logical(a: Tensor, b: Tensor) -> Tensor:
        """In steps whose fake tensors lie as eager's results, if one argument is broadcast, too."""
        return of_truths(*(x if x.dtype == torch.bool else x != 0 for x in (a, b)))


_logical(aten.logical_and.default, torch.bitwise_and)
_logical(aten.logical_or.default, torch.bitwise_or)
_logical(aten.logical_xor.default, torch.bitwise_xor)

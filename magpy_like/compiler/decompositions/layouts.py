"""Operators whose results torch's decompositions or fake tensors lay out unlike eager's kernels.

Some kernels for the CPU keep only the layout where channels are last, and write any other result
row by row.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._prims_common import suggest_memory_format
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


def _logical(operator: Any, of_truths: Any) -> None:
    @means(operator)
    def logical(a: Tensor, b: Tensor) -> Tensor:
        """In steps whose fake tensors lie as eager's results, if one argument is broadcast, too."""
        return of_truths(*(x if x.dtype == torch.bool else x != 0 for x in (a, b)))


_logical(aten.logical_and.default, torch.bitwise_and)
_logical(aten.logical_or.default, torch.bitwise_or)
_logical(aten.logical_xor.default, torch.bitwise_xor)

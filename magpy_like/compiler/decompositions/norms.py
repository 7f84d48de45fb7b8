"""Batch norm, laid out in memory as eager's kernel for the CPU does it.

Torch's decomposition and its fake tensors give a result the layout of the argument. The kernel
keeps only the one where channels are last, and writes any other result row by row.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._prims_common import suggest_memory_format

from magpy_like.compiler.decompositions.table import Function, means

aten = torch.ops.aten

PACKETS = [
    aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional,
]  # fmt: skip


def _laid_out(meant: Function) -> Function:
    @functools.wraps(meant)
    def batch_norm(a: Tensor, *args: Any, **kwargs: Any) -> Any:
        result, *rest = meant(a, *args, **kwargs)
        if a.device.type == "cpu":
            result = result.contiguous(memory_format=suggest_memory_format(a))
        return result, *rest

    return batch_norm


for _operator, _meant in get_decompositions(PACKETS).items():
    means(_operator)(_laid_out(_meant))

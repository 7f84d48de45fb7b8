"""Decompositions whose products eager rounds to bfloat16 or float16."""

from __future__ import annotations

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.registration import (
    register_decomposition,
    torch_decomposition,
)
from magpy_like.compiler.ir.ops import LOW_PRECISION

aten = torch.ops.aten


@register_decomposition(aten.linalg_cross.default)
def _cross(a: Tensor, b: Tensor, *, dim: int = -1) -> Tensor:
    """In low precision, eager on a CPU rounds the products before it subtracts them."""
    if a.dtype not in LOW_PRECISION or a.dtype != b.dtype or a.device.type != "cpu":
        return torch_decomposition(aten.linalg_cross.default)(a, b, dim=dim)
    a, b = torch.broadcast_tensors(a, b)
    return a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim)


@register_decomposition(aten._softmax_backward_data.default)
def _softmax_backward(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """In low precision, eager on a GPU rounds the products before it sums them."""
    if grad.device.type != "cuda" or grad.dtype not in LOW_PRECISION:
        return torch_decomposition(aten._softmax_backward_data.default)(grad, output, dim, dtype)
    product = (grad * output).to(torch.float32)
    total = product.sum(dim, keepdim=True)
    return (product - output.to(torch.float32) * total).to(dtype)

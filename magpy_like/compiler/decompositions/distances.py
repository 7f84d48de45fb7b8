"""Distances between rows: ``cdist`` of two matrices, ``pdist`` of one.

The formulas are those of ATen's CPU kernels, so that ties, zeros and NaN have equal results.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.registration import register_decomposition

aten = torch.ops.aten

_SPECIALIZED_NORMS = (0, 1, 2, math.inf)
"""Norms for which ATen does not call ``pow``. There it is faster for rows of one matrix, whose
pairs it visits once, for gradients, and for short rows that fill no strip of a loop."""
MIN_ROW_LENGTH, STRIP_LENGTH = 64, 32

MAX_DIRECT_ROWS = 25
"""Rows beyond which ATen computes Euclidean distances by a matrix product."""


def _norm(difference: Tensor, p: float) -> Tensor:
    """The p-norm over the last dimension; p = 0 counts non-zero elements."""
    size = difference.abs()
    if p == 0:
        return size.ceil().clamp(max=1).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1)
    return size.pow(p).sum(-1).pow(1 / p)


def _slope(difference: Tensor, grad: Tensor, distance: Tensor, p: float) -> Tensor:
    """The gradient of each difference, given the gradient of its distance."""
    zero = torch.zeros_like(difference)
    if p < 2:
        slope = difference.sign() * difference.abs().pow(p - 1) * grad / distance.pow(p - 1)
        if p < 1:
            slope = torch.where(difference == 0, zero, slope)
    else:
        slope = difference * difference.abs().pow(p - 2) * grad / distance.pow(p - 1)
    return torch.where(distance == 0, zero, slope)


def _is_supported(p: float, *tensors: Tensor) -> bool:
    return p >= 0 and all(
        t.dtype in (torch.float32, torch.float64) and 0 not in t.shape and t.device.type == "cpu"
        for t in tensors
    )


def _uses_matrix_product(a: Tensor, b: Tensor, mode: int) -> bool:
    """True if ATen uses a matrix product: always in mode 1, for many rows in mode 0."""
    return mode == 1 or (
        mode == 0 and (a.shape[-2] > MAX_DIRECT_ROWS or b.shape[-2] > MAX_DIRECT_ROWS)
    )


@register_decomposition(aten._cdist_forward.default)
def _cdist(a: Tensor, b: Tensor, p: float, mode: int | None) -> Tensor:
    if not _is_supported(p, a, b) or (p == 2 and _uses_matrix_product(a, b, mode or 0)):
        return NotImplemented
    length = a.shape[-1]
    if p in _SPECIALIZED_NORMS and (
        type(length) is not int or (length < MIN_ROW_LENGTH and length % STRIP_LENGTH != 0)
    ):
        return NotImplemented
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    if math.isinf(p):  # ATen compares, and NaN is not larger
        difference = torch.where(difference.isnan(), 0, difference)
    return _norm(difference, p)


@register_decomposition(aten._cdist_backward.default)
def _cdist_backward(grad: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor) -> Tensor:
    if not _is_supported(p, grad, a, b) or p in _SPECIALIZED_NORMS:
        return NotImplemented
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    return _slope(difference, grad.unsqueeze(-1), distance.unsqueeze(-1), p).sum(-2)


@register_decomposition(aten._pdist_forward.default)
def _pdist(a: Tensor, p: float = 2.0) -> Tensor:
    if not _is_supported(p, a) or p in _SPECIALIZED_NORMS or a.shape[0] < 2:
        return NotImplemented
    first, second = torch.triu_indices(a.shape[0], a.shape[0], 1, device=a.device).unbind()
    return _norm(aten._unsafe_index(a, [first]) - aten._unsafe_index(a, [second]), p)


@register_decomposition(aten._pdist_backward.default)
def _pdist_backward(grad: Tensor, a: Tensor, p: float, distance: Tensor) -> Tensor:
    """The backward of the full distance matrix, in which each distance occurs twice."""
    if not _is_supported(p, grad, a) or p in _SPECIALIZED_NORMS or a.shape[0] < 2:
        return NotImplemented
    n = a.shape[0]
    row = torch.arange(n, device=a.device)
    low, high = torch.minimum(row[:, None], row), torch.maximum(row[:, None], row)
    index = (n * low - low * (low + 1) // 2 + high - low - 1).clamp(0, distance.shape[0] - 1)
    same = low == high

    def square(pairs: Tensor) -> Tensor:
        return torch.where(same, 0, aten._unsafe_index(pairs, [index])).unsqueeze(-1)

    return _slope(a[:, None] - a, square(grad), square(distance), p).sum(1)

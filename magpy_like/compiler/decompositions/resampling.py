"""Antialiased resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.table import Function, means

aten = torch.ops.aten


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic with a = -1/2, which the antialiasing kernels use."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _weights(
    size: int, out: int, corners: bool, scale: float | None, support: int, kernel: Function,
    like: Tensor,
) -> Tensor:  # fmt: skip
    """[out, size]: how much every output takes from every input along one dimension."""
    if corners:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        step = 1 / scale if scale is not None and scale > 0 else size / out
    wide = max(step, 1.0)
    centre = (torch.arange(out, dtype=torch.float64, device=like.device) + 0.5) * step
    at = torch.arange(size, dtype=torch.float64, device=like.device)
    low = torch.trunc(centre - support * wide + 0.5).clamp(min=0)
    high = torch.trunc(centre + support * wide + 0.5).clamp(max=size)
    inside = (at >= low[:, None]) & (at < high[:, None])
    weight = kernel((at - centre[:, None] + 0.5) / wide) * inside
    return (weight / weight.sum(1, keepdim=True)).to(like.dtype)


def _resample(transposed: bool, support: int, kernel: Function) -> Function:
    """Both dimensions are products with a matrix; the gradient's are the transposed ones."""

    def function(a: Tensor, out: Sequence[Any], *rest: Any) -> Tensor:
        size = rest[0][-2:] if transposed else a.shape[-2:]
        corners, *scales = rest[1:] if transposed else rest
        scales += [None] * (2 - len(scales))
        fixed = all(type(n) is int and n > 0 for n in (*a.shape, *size, *out))
        if a.dtype not in (torch.float32, torch.float64) or not fixed:
            return NotImplemented
        rows, columns = (
            _weights(s, o, corners, scale, support, kernel, a)
            for s, o, scale in zip(size, out, scales, strict=True)
        )
        if transposed:
            return rows.t() @ a @ columns
        return rows @ a @ columns.t()

    return function


for _name, _support, _kernel in (("bilinear", 1, _triangle), ("bicubic", 2, _cubic)):
    means(getattr(aten, f"_upsample_{_name}2d_aa").default)(_resample(False, _support, _kernel))
    means(getattr(aten, f"_upsample_{_name}2d_aa_backward").default)(
        _resample(True, _support, _kernel)
    )

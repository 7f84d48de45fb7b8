"""Complex numbers by real and imaginary part; complex arithmetic runs through ATen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.registration import register_decomposition

aten = torch.ops.aten

_PART = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


@register_decomposition(aten.polar.default)
def _polar(size: Tensor, angle: Tensor) -> Tensor:
    if size.dtype == torch.float16:
        return NotImplemented  # eager multiplies before it rounds
    return aten.complex(size * torch.cos(angle), size * torch.sin(angle))


@register_decomposition(aten._to_copy.default)
def _to_copy(
    a: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, non_blocking: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A cast to complex numbers of another precision, part by part."""
    if not isinstance(a, Tensor) or not a.is_complex():  # a number, in some backward formulas
        return NotImplemented
    dtype = dtype or a.dtype
    plain = layout in (None, torch.strided) and not pin_memory and memory_format is None
    moved = device is not None and torch.device(device) != a.device
    if dtype not in _PART or not plain or moved or a.is_conj() or a.is_neg():
        return NotImplemented
    return torch.view_as_complex(torch.view_as_real(a).to(_PART[dtype], copy=True))

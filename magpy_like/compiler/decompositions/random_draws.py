"""Decompositions of operators that draw random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.registration import register_decomposition

aten = torch.ops.aten


@register_decomposition(getattr(aten.random, "from"))
def _random_from(a: Tensor, low: Any, high: Any = None, *, generator: Any = None) -> Tensor:
    """By ``randint_like``, which draws the same numbers. Torch cannot trace this operator: ``from``
    is a keyword of Python."""
    if high is None or generator is not None:
        return NotImplemented
    return aten.randint_like.low_dtype(a, low, high)

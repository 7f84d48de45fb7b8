"""Losses that look up what a class is given.

Torch's formulas gather it, whose error is another one than a loss's where there is no such class.
So the classes are looked at first, by an operator of our own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.table import means, torchs

aten = torch.ops.aten


def _nll_loss(operator: Any) -> None:
    @means(operator)
    def loss(a: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int) -> Any:
        """Whatever ``a`` is like, eager lays each pixel's loss out row by row."""
        count = a.shape[1 if a.dim() > 1 else 0]
        target = torch.ops.magpy_like.classes(target, count, ignored)
        each, total = torchs(operator)(a, target, weight, reduction, ignored)
        return each.contiguous(), total


_nll_loss(aten.nll_loss_forward.default)
_nll_loss(aten.nll_loss2d_forward.default)

"""Losses, which raise where they are given no class or no probability.

Torch's formulas look up what a class is given, with another error than a loss's where there is no
such class, and take the logarithm of any number. So the arguments are looked at first, by operators
of our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from magpy_like.compiler.decompositions.table import means, torchs

aten = torch.ops.aten


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@means(aten.huber_loss.default)
def _huber_loss(a: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """Eager's has the first argument's dtype, whatever the target's is."""
    return _reduced(torchs(aten.huber_loss.default)(a, target, 0, delta).to(a.dtype), reduction)


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


@means(aten.multilabel_margin_loss_forward.default)
def _multilabel_margin_loss(a: Tensor, target: Tensor, reduction: int) -> Sequence[Tensor]:
    """A row of ``target`` names classes up to its first -1. Torch's formula counts margins of what
    follows, too."""
    classes = a.shape[-1]
    rows, named = a.reshape(-1, classes), target.reshape(-1, classes)
    named = torch.ops.magpy_like.classes(named, classes, -1)
    counts = (named == -1).cumsum(-1) == 0
    named = named.where(counts, 0)
    each = torch.arange(classes, device=a.device)
    is_named = (counts[:, :, None] & (named[:, :, None] == each)).any(1)
    margin = 1 - rows.gather(1, named)[:, :, None] + rows[:, None, :]
    margin = margin.where(counts[:, :, None] & ~is_named[:, None, :] & (margin > 0), 0)
    loss = margin.sum((1, 2)) / classes
    return _reduced(loss.reshape(a.shape[:-1]), reduction), is_named.to(a.dtype).reshape(
        target.shape
    )


# Torch has its formula run wherever it traces what Autograd records, before any table is asked.
aten.multilabel_margin_loss_forward.default.py_kernels[DispatchKey.Autograd] = (
    _multilabel_margin_loss
)

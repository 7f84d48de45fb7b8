"""Losses, which raise where they are given no class or no probability.

Torch's formulas look up what a class is given, with another error than a loss's where there is no
such class, and take the logarithm of any number. So the arguments are looked at first, by operators
of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.decomposition_table import (
    Decomposition,
    register_decomposition,
    torch_decomposition,
)
from magpy_like.compiler.lowering.value_checks import INDICES
from magpy_like.torch_compat.dispatch import DispatchKey

aten = torch.ops.aten


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@register_decomposition(aten.huber_loss.default)
def _huber_loss(a: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """Eager's has the first argument's dtype, whatever the target's is."""
    return _reduced(
        torch_decomposition(aten.huber_loss.default)(a, target, 0, delta).to(a.dtype), reduction
    )


def _nll_loss(operator: Any) -> None:
    @register_decomposition(operator)
    def loss(a: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int) -> Any:
        """Whatever ``a`` is like, eager lays each pixel's loss out row by row."""
        count = a.shape[1 if a.dim() > 1 else 0]
        target = INDICES(target, count, ignored)
        each, total = torch_decomposition(operator)(a, target, weight, reduction, ignored)
        return each.contiguous(), total


_nll_loss(aten.nll_loss_forward.default)
_nll_loss(aten.nll_loss2d_forward.default)


def _replace_torch_decomposition(operator: Any) -> Callable[[Decomposition], Decomposition]:
    """Torch has its formula of some operators run wherever it traces what Autograd records, before
    any table is asked."""

    def register(function: Decomposition) -> Decomposition:
        operator.py_kernels[DispatchKey.Autograd] = function
        return register_decomposition(operator)(function)

    return register


@_replace_torch_decomposition(aten.multi_margin_loss.default)
def _multi_margin_loss(
    a: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:  # fmt: skip
    """What is no number does not count."""
    classes = a.shape[-1]
    rows, own = a.reshape(-1, classes), target.reshape(-1, 1)
    own = INDICES(own, classes)
    missing = margin - rows.gather(1, own) + rows
    counts = (missing > 0) & (torch.arange(classes, device=a.device) != own)
    each = missing.where(counts, 0) ** p
    if weight is not None:
        each = each * weight[own]
    return _reduced((each.sum(1) / classes).reshape(target.shape), reduction)


@_replace_torch_decomposition(aten.multilabel_margin_loss_forward.default)
def _multilabel_margin_loss(a: Tensor, target: Tensor, reduction: int) -> Sequence[Tensor]:
    """A row of ``target`` names classes up to its first -1. Torch's formula counts margins of what
    follows, too. What is no number does not count."""
    classes = a.shape[-1]
    rows, named = a.reshape(-1, classes), target.reshape(-1, classes)
    named = INDICES(named, classes, -1)
    names = (named == -1).cumsum(-1) == 0
    named = named.where(names, 0)
    each = torch.arange(classes, device=a.device)
    is_named = (names[:, :, None] & (named[:, :, None] == each)).any(1)
    missing = 1 - rows.gather(1, named)[:, :, None] + rows[:, None, :]
    counts = names[:, :, None] & ~is_named[:, None, :] & (missing > 0)
    loss = missing.where(counts, 0).sum((1, 2)) / classes
    told = is_named.to(a.dtype).reshape(target.shape)
    return _reduced(loss.reshape(a.shape[:-1]), reduction), told

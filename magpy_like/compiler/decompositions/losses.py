"""Losses with checked arguments, class indices and probabilities, and NaN in gradients.

Torch's decompositions gather by class index, and raise another error than the loss if there is no
such class; and they take the logarithm of any number. So own operators check the arguments first.
Some of torch's gradients are 0 where an element is NaN. Eager's are NaN: training notices it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.decompositions.registration import (
    Decomposition,
    register_decomposition,
    torch_decomposition,
)
from magpy_like.compiler.ir.ops import compute_dtype
from magpy_like.compiler.lowering.value_checks import INDICES
from magpy_like.torch_compat.dispatch import DispatchKey

aten = torch.ops.aten


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@register_decomposition(aten.huber_loss.default)
def _huber_loss(a: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """Eager's result has the first argument's dtype, whatever the target's is."""
    return _reduced(
        torch_decomposition(aten.huber_loss.default)(a, target, 0, delta).to(a.dtype), reduction
    )


@register_decomposition(aten.smooth_l1_loss_backward.default)
def _smooth_l1_loss_backward(
    grad: Tensor, a: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    precise = compute_dtype(torch.promote_types(a.dtype, target.dtype))
    difference = a.to(precise) - target.to(precise)
    grad = grad.to(precise) * (1.0 / a.numel() if reduction == 1 else 1.0)
    linear, quadratic = grad * difference.sign(), grad * difference / beta
    return torch.where(difference.abs() >= beta, linear, quadratic).to(a.dtype)


@register_decomposition(aten.logit_backward.default)
def _logit_backward(grad: Tensor, a: Tensor, eps: float | None = None) -> Tensor:
    if eps is None:
        return torch_decomposition(aten.logit_backward.default)(grad, a)
    precise = compute_dtype(a.dtype)
    x = a.to(precise)
    slope = grad.to(precise) / (x * (1.0 - x))
    return torch.where((x < eps) | (x > 1.0 - eps), 0.0, slope).to(a.dtype)


def _nll_loss(operator: Any) -> None:
    @register_decomposition(operator)
    def loss(a: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int) -> Any:
        """Unreduced losses are row-major in eager, whatever the layout of ``a``."""
        count = a.shape[1 if a.dim() > 1 else 0]
        target = INDICES(target, count, ignored)
        each, total = torch_decomposition(operator)(a, target, weight, reduction, ignored)
        return each.contiguous(), total


_nll_loss(aten.nll_loss_forward.default)
_nll_loss(aten.nll_loss2d_forward.default)


def _replace_torch_decomposition(operator: Any) -> Callable[[Decomposition], Decomposition]:
    """A decorator like ``register_decomposition``, also for torch's Autograd kernel.

    Torch runs its own decomposition of some operators when it traces through Autograd, before it
    consults any table.
    """

    def register(function: Decomposition) -> Decomposition:
        operator.py_kernels[DispatchKey.Autograd] = function
        return register_decomposition(operator)(function)

    return register


@_replace_torch_decomposition(aten.multi_margin_loss.default)
def _multi_margin_loss(
    a: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:  # fmt: skip
    """NaN margins do not count."""
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
    """A row of ``target`` lists classes up to its first -1.

    Torch's decomposition also counts margins of the entries after it. NaN margins do not count.
    """
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
    is_target = is_named.to(a.dtype).reshape(target.shape)
    return _reduced(loss.reshape(a.shape[:-1]), reduction), is_target

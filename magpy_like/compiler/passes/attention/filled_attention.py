"""Attention whose masked scores are filled, by the library where that gives what the formula does.

A fill replaces the scores beneath the mask; the library adds its mask to them. Only where a score
is NaN or infinite, which then one masked key can be for all queries, or lower than what is filled
in, do the two differ, and whether one is the library says: it returns the logarithm of each row's
sum of powers, one number for ``dim`` of the result. So this is an operator of its own, which looks
at these and then may compute the formula as it is written, in the backward pass too.

On a CPU only: on a GPU to look would be to wait. There the formula stays. *Measured* on an H100,
float32, 4 x 12 heads of 512 x 64: 0.15 ms where the library took 0.14 ms, and with the backward
pass 0.53 ms where it took 0.69 ms.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from magpy_like.graph_operators.custom_operators import autograd, define, differentiate

# Below the logarithm of the sum by more than this, a power is zero, in float64 too.
VANISHING = 1000.0

_aten = torch.ops.aten


def _attention(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, fill: float,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The attention, and the logarithms of sums for its backward pass: NaN if that is the
    formula's.

    ``keep`` is false where scores are filled, ``bias`` then -inf, but for rows that would have
    nothing else: these are the caller's to set right. Without both, what is later is filled.
    """
    if not (q.numel() and k.numel()):
        return _laid_out(_formula(q, k, v, keep, fill, scale)), _sizes(q)[1].fill_(math.nan)
    out, sums = _aten._scaled_dot_product_flash_attention_for_cpu(
        _dense(q), _dense(k), _dense(v), 0.0, bias is None, attn_mask=bias, scale=scale
    )
    if _is_the_formulas(out, sums, fill) and (
        bias is not None or (_is_finite(k) and _is_finite(v))
    ):
        return out, sums
    return _laid_out(_formula(q, k, v, keep, fill, scale)), sums.fill_(math.nan)


def _is_the_formulas(out: Tensor, sums: Tensor, fill: float) -> bool:
    lowest, highest = (float(x) for x in torch.aminmax(sums))
    if not (fill + VANISHING < lowest and highest < math.inf):
        return False
    # The library has zeros for both where all that a row sees is -inf, and eager has not.
    if lowest <= 0 <= highest and (zeros := sums == 0).any():
        return not (out[..., 0][zeros] == 0).any()
    return True


def _is_finite(t: Tensor) -> bool:
    """Whether a sum says so; of keys and values that causal attention does not even read."""
    return math.isfinite(float(t.detach().sum()))


def _formula(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, fill: float, scale: float
) -> Tensor:
    if keep is None:
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-2, -1) * scale
    return scores.masked_fill(keep.logical_not(), fill).softmax(-1) @ v


def _attention_backward(
    grad: Tensor, out: Tensor, sums: Tensor, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None,
    bias: Tensor | None, fill: float, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    if sums.numel() and not sums[0, 0, 0].isnan():
        grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _dense(grad), _dense(q), _dense(k), _dense(v), out, sums, 0.0, bias is None,
            attn_mask=bias, scale=scale,
        )  # fmt: skip
        # The gradient of what is filled over is zero, not zero times what comes in.
        if _is_finite(grads[0]):
            return tuple(map(_laid_out, grads))
    with autograd():
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        grads = torch.autograd.grad(_formula(q, k, v, keep, fill, scale), (q, k, v), grad)
        return tuple(map(_laid_out, grads))


def _dense(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 else t.contiguous()


def _laid_out(t: Tensor) -> Tensor:
    """As the library lays out results and gradients: the heads of a position side by side."""
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def _new(like: Tensor) -> Tensor:
    b, h, n, d = like.shape
    return like.new_empty(b, n, h, d).transpose(1, 2)


def _sizes(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    b, h, n, _dim = q.shape
    kind = torch.promote_types(q.dtype, torch.float32)
    return _new(q), q.new_empty(b, n, h, dtype=kind).transpose(1, 2)


def _gradient_sizes(
    grad: Tensor, out: Tensor, sums: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return _new(q), _new(k), _new(v)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.fill, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    out, sums, q, k, v, keep, bias = ctx.saved_tensors
    if torch.is_grad_enabled():  # to be differentiated once more, which the operator's is not
        given = [t for t in (q, k, v) if t.requires_grad]
        result = _formula(q, k, v, keep, ctx.fill, ctx.scale)
        found = iter(torch.autograd.grad(result, given, grad, create_graph=True))
        grads = tuple(next(found) if t.requires_grad else None for t in (q, k, v))
    else:
        grads = _FILLED_ATTENTION_BACKWARD(
            grad, out, sums, q, k, v, keep, bias, ctx.fill, ctx.scale
        )
    return (*grads, None, None, None, None)


_ARGUMENTS = "Tensor q, Tensor k, Tensor v, Tensor? keep, Tensor? bias, float fill, float scale"
_FILLED_ATTENTION_BACKWARD = define(
    f"filled_attention_backward(Tensor grad, Tensor out, Tensor sums, {_ARGUMENTS}) "
    "-> (Tensor, Tensor, Tensor)",
    _attention_backward,
    _gradient_sizes,
)
FILLED_ATTENTION = define(f"filled_attention({_ARGUMENTS}) -> (Tensor, Tensor)", _attention, _sizes)
differentiate(FILLED_ATTENTION, _backward, _keep_inputs)

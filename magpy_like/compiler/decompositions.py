"""Operators in terms of simpler ones: which of torch's decompositions are used, and some more.

What has a lowering is never decomposed. A function of this file's own table may return
``NotImplemented``: then the operator stays as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._prims_common import suggest_memory_format

from magpy_like.compiler.lowering import LOWERINGS
from magpy_like.compiler.ops import LOW_PRECISION

aten = torch.ops.aten

#: Decomposed beyond torch's core set.
EXTRA = [
    aten.native_layer_norm, aten.native_layer_norm_backward,
    aten.native_group_norm, aten.native_group_norm_backward,
    aten.native_batch_norm, aten.native_batch_norm_backward,
    aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional,
    aten.batch_norm_backward,
    aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.nll_loss_forward, aten.nll_loss_backward, aten.addcmul, aten.addcdiv, aten.lerp,
    aten.select_backward, aten.slice_backward,
    aten.masked_fill, aten.hardtanh_backward, aten.hardswish_backward, aten.leaky_relu_backward,
    aten.elu_backward, aten.softplus_backward, aten.native_dropout_backward, aten.stack,
    aten.std_mean, aten.mse_loss_backward, aten.smooth_l1_loss_backward, aten.huber_loss_backward,
    aten.baddbmm, aten.diagonal_backward, aten.trace,
    aten.elu, aten.hardtanh, aten.leaky_relu, aten.ldexp,
    aten.dist, aten.tril_indices, aten.triu_indices, aten.frexp,
    aten.as_strided_copy, aten.narrow_copy, aten.permute_copy, aten.unbind_copy, aten.view_copy,
]  # fmt: skip

#: In torch's core set, but lowered or called as they are.
KEEP = [
    aten.gelu_backward, aten.silu, aten.silu_backward, aten.sigmoid_backward, aten.tanh_backward,
    aten.threshold_backward, aten.native_dropout, aten.bernoulli, aten.rand_like, aten.randn_like,
    aten.randint_like, aten.baddbmm, aten.addmv, aten.uniform, aten.normal,
    aten._safe_softmax, aten.embedding_dense_backward,
    aten.rrelu_with_noise, aten.exponential,
    # The decomposition computes the result only, not the log-sum-exp that its backward reads.
    aten._scaled_dot_product_flash_attention_for_cpu,
]  # fmt: skip

Function = Callable[..., Any]
OWN: dict[Any, Function] = {}


@functools.cache
def decompositions() -> dict[Any, Function]:
    """Operator -> its meaning in simpler operators; what has a lowering is left alone."""
    table = dict(core_aten_decompositions()) | get_decompositions(EXTRA) | OWN
    kept = {getattr(packet, name) for packet in KEEP for name in packet.overloads()}
    return {
        operator: function
        for operator, function in table.items()
        if operator not in kept and operator not in LOWERINGS
    }


def _means(*operators: Any) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        OWN.update(dict.fromkeys(operators, function))
        return function

    return register


def _steps(packet: Any, name: str) -> None:
    meant = core_aten_decompositions()[getattr(packet, name)]

    @_means(getattr(packet, name))
    def steps(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        """Of low precision eager rounds every step, and of integers both ends; on a GPU it cuts off
        fused sums of float32. No other arithmetic comes out alike."""
        if dtype in LOW_PRECISION or (dtype is not None and not dtype.is_floating_point):
            return NotImplemented
        return meant(*args, dtype=dtype, **kwargs)


for _packet in (aten.linspace, aten.logspace):
    for _overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        _steps(_packet, _overload)


@_means(getattr(aten.random, "from"))
def _random_from(a: Tensor, low: Any, high: Any = None, *, generator: Any = None) -> Tensor:
    """By the operator that draws alike: this one's name is no Python, so torch cannot trace it."""
    if high is None or generator is not None:
        return NotImplemented
    return aten.randint_like.low_dtype(a, low, high)


@_means(aten._softmax_backward_data.default)
def _softmax_backward(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Of low precision, eager on a GPU rounds the products before it sums them."""
    if grad.device.type != "cuda" or grad.dtype not in LOW_PRECISION:
        meant = get_decompositions([aten._softmax_backward_data])
        return meant[aten._softmax_backward_data.default](grad, output, dim, dtype)
    product = (grad * output).to(torch.float32)
    total = product.sum(dim, keepdim=True)
    return (product - output.to(torch.float32) * total).to(dtype)


# --- placing -------------------------------------------------------------------------------------


@_means(aten.put.default)
def _put(a: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if a.numel() == 0 or a.dtype == torch.bool:
        return NotImplemented
    flat = a.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate)
    return aten.copy(torch.empty_like(a), flat.view(a.shape))


@_means(aten.masked_scatter_backward.default)
def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The gradients under the mask, in order, and zeros."""
    count = math.prod(sizes)
    if grad.numel() == 0 or count == 0:
        return NotImplemented
    kept = mask.expand(grad.shape).reshape(-1)
    place = torch.where(kept, kept.to(torch.int64).cumsum(0) - 1, count).clamp(max=count)
    result = grad.new_zeros([count + 1]).index_put([place], grad.reshape(-1))
    return result[:count].reshape(list(sizes))


@_means(aten.nonzero_static.default)
def _nonzero_static(a: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    if a.numel() == 0 or a.dim() == 0 or size == 0:
        return NotImplemented
    found = (a != 0).reshape(-1)
    order = found.to(torch.int64).cumsum(0) - 1
    place = torch.where(found, order.clamp(max=size), size)
    rest = torch.arange(found.numel(), device=a.device)
    columns = []
    for extent in reversed(a.shape):
        column = torch.full([size + 1], fill_value, dtype=torch.int64, device=a.device)
        columns.append(column.index_put([place], rest % extent)[:size])
        rest = rest // extent
    if a.device.type == "cuda":  # column by column in memory, as eager's
        return torch.stack(columns[::-1]).t()
    return torch.stack(columns[::-1], 1)


@_means(aten.max_unpool2d.default)
def _max_unpool2d(a: Tensor, index: Tensor, size: Sequence[Any]) -> Tensor:
    """torch's own, laid out as eager's kernel for the CPU does it."""
    result = core_aten_decompositions()[aten.max_unpool2d.default](a, index, size)
    kept = suggest_memory_format(a) if a.device.type == "cpu" else torch.contiguous_format
    return result.contiguous(memory_format=kept)


def _replication_pad_backward(grad: Tensor, a: Tensor, padding: Sequence[Any]) -> Tensor:
    """Every element of the result collects what its copies got."""
    rank = len(padding) // 2
    if 0 in a.shape or 0 in grad.shape:
        return NotImplemented
    index: list[Tensor | None] = [None] * a.dim()
    for k in range(rank):
        dim = a.dim() - 1 - k
        at = torch.arange(grad.shape[dim], device=grad.device) - padding[2 * k]
        shape = [-1] + [1] * k
        index[dim] = at.clamp(0, a.shape[dim] - 1).reshape(shape)
    return aten._unsafe_index_put(torch.zeros_like(a), index, grad, True)


for _rank in (1, 2, 3):
    _means(getattr(aten, f"replication_pad{_rank}d_backward").default)(_replication_pad_backward)


# --- antialiased resampling ----------------------------------------------------------------------


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
    _means(getattr(aten, f"_upsample_{_name}2d_aa").default)(_resample(False, _support, _kernel))
    _means(getattr(aten, f"_upsample_{_name}2d_aa_backward").default)(
        _resample(True, _support, _kernel)
    )

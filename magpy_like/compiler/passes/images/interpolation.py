"""Linear and cubic image interpolation: pixels as weighted sums of their neighbours.

Eager's kernels compute such sums. Torch's decomposition computes ``a + (b - a) * weight``, which is
NaN where both neighbours are infinite, and next to infinities even at weight zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from magpy_like.compiler.ir.ops import LOW_PRECISION
from magpy_like.torch_compat.decompositions import (
    resize_scale,
    resize_source_index,
    suggest_memory_format,
)
from magpy_like.torch_compat.functorch import is_under_transform

aten = torch.ops.aten

Neighbours = list[tuple[Tensor, Tensor]]
"""For each neighbour along one dimension: (source indices, weights) of all pixels."""


def resize(image: Tensor, size: Sequence[Any], mode: str, corners: bool, scales: Any) -> Tensor:
    """A float image (N, C, ...) resized as by eager's kernels, with eager's gradients.

    Args:
        mode: of ``torch.nn.functional.interpolate``, except the nearest ones.
        corners: align_corners.
        scales: the scale factor of each dimension, or None to compute it from the sizes.
    """
    scales = [None] * len(size) if scales is None else scales
    varies = any(isinstance(n, torch.SymInt) for n in (*image.shape, *size))
    functional = is_under_transform()
    # Torch cannot infer the result of the backward operators for symbolic sizes.
    if functional or (varies and not _copies_gradients(image, size, mode)):
        return _pixels(image, size, mode, corners, scales)
    return _Resized.apply(image, size, mode, corners, scales)


def _copies_gradients(image: Tensor, size: Sequence[Any], mode: str) -> bool:
    same = (guard_or_false(a == b) for a, b in zip(image.shape[2:], size, strict=True))
    return mode == "bicubic" and all(same)


class _Resized(torch.autograd.Function):
    """A resize whose gradient is eager's kernel: it sums per pixel, where loops would scatter, and
    copies where a cubic resize changes no size."""

    @staticmethod
    def forward(
        ctx: Any, image: Tensor, size: Any, mode: str, corners: bool, scales: Any
    ) -> Tensor:
        ctx.copies = _copies_gradients(image, size, mode)
        ctx.operator, ctx.rest = _BACKWARD[mode], (size, image.shape, corners, *scales)
        return _pixels(image, size, mode, corners, scales)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        found = gradient if ctx.copies else ctx.operator(gradient, *ctx.rest)
        return found, None, None, None, None


_BACKWARD = {
    "linear": aten.upsample_linear1d_backward.default,
    "bilinear": aten.upsample_bilinear2d_backward.default,
    "trilinear": aten.upsample_trilinear3d_backward.default,
    "bicubic": aten.upsample_bicubic2d_backward.default,
}


def _pixels(image: Tensor, size: Sequence[Any], mode: str, corners: bool, scales: Any) -> Tensor:
    kind, cubic = torch.promote_types(image.dtype, torch.float32), mode == "bicubic"
    same = [guard_or_false(a == b) for a, b in zip(image.shape[2:], size, strict=True)]
    if image.device.type == "cuda":  # its kernels copy along all dimensions or none
        if all(same):
            return image.clone(memory_format=_memory_format(image))
        same = [False] * len(same)
    axes = []
    for old, new, scale, is_same in zip(image.shape[2:], size, scales, same, strict=True):
        step = resize_scale(old, new, corners, scale)
        pixels = torch.arange(new, device=image.device)
        position = resize_source_index(step, pixels.to(kind), corners)
        if cubic:
            axes.append(_cubic(position, old))
        else:
            axes.append(_linear(position, pixels, old, same=is_same))
    if _has_rounded_weights(image, cubic):
        axes = [_round_weights(neighbours, image.dtype, cubic) for neighbours in axes]
    result = _weighted_sum(image.to(kind), axes).to(image.dtype)
    return result.contiguous(memory_format=_memory_format(image))


def _linear(position: Tensor, pixels: Tensor, size: Any, *, same: bool) -> Neighbours:
    if same:
        return [(pixels, torch.ones_like(position)), (pixels, torch.zeros_like(position))]
    position = position.clamp(min=0)
    first = position.to(torch.int64)
    part = (position - first).clamp(0, 1)
    return [(first, 1 - part), ((first + 1).clamp(max=size - 1), part)]


_A = -0.75
"""The parameter *a* of cubic convolution (Keys 1981)."""


def _cubic(position: Tensor, size: Any) -> Neighbours:
    first = position.floor()
    part = (position - first).clamp(0, 1)
    weights = [
        _cubic_outer(part + 1),
        _cubic_inner(part),
        _cubic_inner(1 - part),
        _cubic_outer(2 - part),
    ]
    positions = [(first.to(torch.int64) + k).clamp(0, size - 1) for k in (-1, 0, 1, 2)]
    return list(zip(positions, weights, strict=True))


def _cubic_inner(t: Tensor) -> Tensor:
    return ((_A + 2) * t - (_A + 3)) * t * t + 1


def _cubic_outer(t: Tensor) -> Tensor:
    return ((_A * t - 5 * _A) * t + 8 * _A) * t - 4 * _A


def _has_rounded_weights(image: Tensor, cubic: bool) -> bool:
    """True if eager's kernel rounds weights to the image's low precision.

    The CPU kernels that process all channels of a pixel at once, which resize all images of two
    dimensions, do not.
    """
    if image.dtype not in LOW_PRECISION or image.device.type != "cpu":
        return False
    many = _memory_format(image) is torch.channels_last_3d and guard_or_false(image.shape[1] > 3)
    return cubic or not (image.dim() == 4 or many)


def _round_weights(neighbours: Neighbours, dtype: torch.dtype, cubic: bool) -> Neighbours:
    """The weights rounded to ``dtype``; linear ones still add up to one."""
    weights = [weight.to(dtype).to(weight.dtype) for _, weight in neighbours]
    if not cubic:
        weights[0] = (1 - weights[1]).to(dtype).to(weights[1].dtype)
    return [(position, weight) for (position, _), weight in zip(neighbours, weights, strict=True)]


def _weighted_sum(image: Tensor, axes: Sequence[Neighbours], *positions: Tensor) -> Tensor:
    """The pixels at ``positions`` along the first dimensions, interpolated along the others."""
    if len(positions) == len(axes):
        return aten._unsafe_index(image, [None, None, *positions])
    missing = len(axes) - len(positions) - 1
    parts = []
    for position, weight in axes[len(positions)]:
        shape = (-1, *itertools.repeat(1, missing))
        part = _weighted_sum(image, axes, *positions, position.reshape(shape))
        parts.append(part * weight.reshape(shape))
    return sum(parts[1:], parts[0])


def _memory_format(image: Tensor) -> torch.memory_format:
    """The memory format of the result: a GPU keeps channels-last only for 16 channels or more."""
    if image.device.type == "cuda" and image.shape[1] < 16 and image.dim() == 4:
        return torch.contiguous_format
    return suggest_memory_format(image)

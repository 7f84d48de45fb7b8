"""Nearest-neighbour image resizing: each pixel is a copy of the nearest source pixel.

Eager's kernels disagree on the nearest pixel, and torch's decomposition disagrees with most of
them: where a quotient of sizes is an integer up to rounding, the precision and the order of the
operations decide. So this module computes the source indices exactly as each kernel does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from magpy_like.torch_compat.decompositions import suggest_memory_format
from magpy_like.torch_compat.functorch import is_under_transform

aten = torch.ops.aten

GPU, LOOP, TABLE = range(3)
"""Eager's kernels: the CPU has one that loops over pixels, and one with a table of indices."""
_FUSES = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
"""Whether the CPU's kernels use fused multiply-add, which rounds once."""
_MAX_NARROW_CHANNELS = 3  # channels, up to which a CPU takes no whole columns of them
_MAX_LOOP_EXTENT = 128  # height and width together, up to which a CPU makes no table


def resize(image: Tensor, size: Sequence[Any], exact: bool, scales: Any) -> Tensor:
    """An image (N, C, ...) resized as by eager's kernels, with eager's gradients.

    Args:
        exact: whether pixels are points at their centre, as for ``"nearest-exact"``.
        scales: the scale factor of each dimension, or None to compute it from the sizes.
    """
    scales = [None] * len(size) if scales is None else list(scales)
    if is_under_transform():
        return _pixels(image, size, exact, scales)
    return _Nearest.apply(image, size, exact, scales)


class _Nearest(torch.autograd.Function):
    """A resize with eager's gradient: on a CPU always that of the looping kernel; on a GPU that of
    a kernel whose pixels sometimes differ from the copied ones."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, size: Any, exact: bool, scales: Any) -> Tensor:
        ctx.shape, ctx.rest = image.shape, (size, exact, scales)
        return _pixels(image, size, exact, scales)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        kind = torch.promote_types(gradient.dtype, torch.float32)
        added, empty = gradient.to(kind), gradient.new_zeros(ctx.shape, dtype=kind)
        old, (size, exact, scales) = ctx.shape[2:], ctx.rest
        if gradient.device.type == "cuda":
            indices = _gradient_indices(gradient, old, size, exact, scales)
            for index, pixels in zip(indices, old, strict=True):
                added = torch.where(index < pixels, added, 0)
            indices = [index.clamp(max=n - 1) for index, n in zip(indices, old, strict=True)]
        else:
            indices = _source_indices(gradient, old, size, exact, scales, LOOP)
        found = aten._unsafe_index_put(empty, [None, None, *indices], added, True)
        found = found.to(gradient.dtype)
        rows = gradient.dim() != 4  # volumes and lines are row-major
        return found.contiguous() if rows else _to_layout_of(found, gradient), None, None, None


def _pixels(image: Tensor, size: Sequence[Any], exact: bool, scales: Sequence[Any]) -> Tensor:
    def indices(kernel: int) -> list[Tensor]:
        return _source_indices(image, image.shape[2:], size, exact, scales, kernel)

    kernel = _kernel(image, exact, scales)
    if kernel is None:
        small = _compare(size[0] + size[1], operator.le, _MAX_LOOP_EXTENT, image.device)
        chosen = [_where(small, *both) for both in zip(indices(LOOP), indices(TABLE), strict=True)]
    else:
        chosen = indices(kernel)
    return _to_layout_of(aten._unsafe_index(image, [None, None, *chosen]), image)


def _to_layout_of(result: Tensor, like: Tensor) -> Tensor:
    """``result`` in the suggested memory format of ``like``; of 1-d images, row-major."""
    return result.clone(
        memory_format=torch.contiguous_format if like.dim() == 3 else suggest_memory_format(like)
    )


def _kernel(image: Tensor, exact: bool, scales: Sequence[Any]) -> int | None:
    """The kernel of eager's that resizes an image; None if that depends on the sizes."""
    if image.device.type == "cuda":
        return GPU
    if image.dim() == 3:
        return TABLE
    if not exact and image.dtype != torch.float64 and not any(map(_has_scale, scales)):
        return TABLE  # both compute the same
    last = torch.channels_last if image.dim() == 4 else torch.channels_last_3d
    if image.is_contiguous(memory_format=last) and guard_or_false(
        image.shape[1] > _MAX_NARROW_CHANNELS
    ):
        return LOOP
    return TABLE if image.dim() == 5 else None


def _compare(a: Any, relation: Any, b: Any, device: torch.device) -> bool | Tensor:
    """A relation between sizes; for symbolic ones a tensor, which each call computes unguarded."""
    if type(a) is int and type(b) is int:
        return bool(relation(a, b))
    return relation(torch.full((), a, dtype=torch.int64, device=device), b)


def _where(condition: bool | Tensor, a: Tensor, b: Tensor) -> Tensor:
    if isinstance(condition, bool):
        return a if condition else b
    return torch.where(condition, a, b)


def _has_scale(scale: float | None) -> bool:
    """True if eager computes indices from the scale factor, not from the sizes."""
    return scale is not None and scale > 0


def _source_indices(
    like: Tensor, old_size: Sequence[Any], size: Sequence[Any], exact: bool, scales: Sequence[Any],
    kernel: int,
) -> list[Tensor]:  # fmt: skip
    """The indices of the copied pixels along each dimension, in shapes that broadcast."""
    wide = kernel == TABLE and like.dtype == torch.float64
    kind = torch.float64 if wide else torch.float32
    indices = []
    for dim, (old, new, scale) in enumerate(zip(old_size, size, scales, strict=True)):
        pixels = torch.arange(new, device=like.device)
        number = 1.0 / scale if _has_scale(scale) else old / new
        step = torch.full((), number, dtype=kind, device=like.device)
        position = (_from_centres if exact else _from_corners)(pixels, step, kernel)
        index = position.to(torch.float32).to(torch.int64).clamp(max=old - 1)
        if _has_scale(scale):
            index = _apply_identity_cases(index, pixels, old, new, exact, kernel, len(size))
        indices.append(index.reshape(-1, *[1] * (len(size) - 1 - dim)))
    return indices


def _apply_identity_cases(
    index: Tensor, pixels: Tensor, old: Any, new: Any, exact: bool, kernel: int, rank: int
) -> Tensor:
    """The indices, corrected for sizes at which a kernel ignores the scale factor."""
    if kernel == LOOP and not exact:
        index = _where(_compare(new, operator.eq, 2 * old, pixels.device), pixels // 2, index)
    elif kernel != GPU or rank != 2:
        return index
    return _where(_compare(new, operator.eq, old, pixels.device), pixels, index)


def _from_corners(pixels: Tensor, step: Tensor, kernel: int) -> Tensor:
    return pixels.to(step.dtype) * step


def _from_centres(pixels: Tensor, step: Tensor, kernel: int) -> Tensor:
    if kernel == GPU:
        return (pixels.to(step.dtype) + 0.5) * step
    if kernel == LOOP:
        return (pixels.to(torch.float64) + 0.5) * step.to(torch.float64)
    kind = torch.float64 if _FUSES else step.dtype  # a product of two floats is exact in float64
    position = (pixels.to(kind) + 0.5) * step.to(kind) - 0.5
    return position.to(step.dtype).clamp(min=0).to(torch.float64) + 0.5


def _gradient_indices(
    like: Tensor, old_size: Sequence[Any], size: Sequence[Any], exact: bool, scales: Sequence[Any]
) -> list[Tensor]:
    """The source pixel along each dimension to which a GPU's backward kernel adds each gradient.

    It is the last source pixel that starts at or before the pixel. Indices beyond the image are
    added to none.
    """
    sizes = list(zip(old_size, size, strict=True))
    copies = len(size) == 2 and functools.reduce(
        operator.and_, (_compare(new, operator.eq, old, like.device) for old, new in sizes)
    )
    indices = []
    for dim, ((old, new), scale) in enumerate(zip(sizes, scales, strict=True)):
        pixels = torch.arange(new, device=like.device)
        number = scale if _has_scale(scale) else new / old
        step = torch.full((), number, dtype=torch.float32, device=like.device)
        before = 0.5 if exact else 0.0

        def start(index: Tensor, step: Tensor = step, before: float = before) -> Tensor:
            product = index.to(torch.float64) * step.to(torch.float64)  # a GPU fuses, too
            return (product - before).to(torch.float32).ceil().to(torch.int64)

        index = ((pixels.to(torch.float32) + before) / step).to(torch.int64)  # off by one at most
        index = torch.where(start(index) > pixels, index - 1, index)
        index = torch.where(start(index + 1) <= pixels, index + 1, index)
        index = _where(copies, pixels, index)
        indices.append(index.reshape(-1, *[1] * (len(size) - 1 - dim)))
    return indices

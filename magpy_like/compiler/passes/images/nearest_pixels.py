"""Pixels of resized images that are each a copy of the nearest pixel.

Which one that is, eager's kernels disagree about, and torch's own decomposition with most of them:
where a quotient of sizes is a whole number but for rounding, the precision and the order of the
operations tell. So what is written here is what each kernel computes.
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
"""Kernels: a CPU has one that loops over pixels, and one that looks them up in a table."""
_FUSES = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
"""Whether the CPU's kernels round once where they multiply and then add."""
_NARROW = 3  # channels, up to which a CPU takes no whole columns of them
_SMALL = 128  # height and width together, up to which a CPU makes no table


def resized(image: Tensor, size: Sequence[Any], exact: bool, scales: Any) -> Tensor:
    """An image as eager's kernels resize it, and with gradients as they give them.

    Args:
        exact: whether pixels are points in their middle, as for ``"nearest-exact"``.
        scales: for each dimension how many times it grows, or None; where there is none, the sizes
            tell.
    """
    scales = [None] * len(size) if scales is None else list(scales)
    if is_under_transform():
        return _pixels(image, size, exact, scales)
    return _Nearest.apply(image, size, exact, scales)


class _Nearest(torch.autograd.Function):
    """Of an image. On a CPU, its gradient is always found by the kernel that loops; on a GPU, by
    one whose pixels are sometimes others than those that were copied."""

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
            places = _gathering(gradient, old, size, exact, scales)
            for place, pixels in zip(places, old, strict=True):
                added = torch.where(place < pixels, added, 0)
            places = [place.clamp(max=n - 1) for place, n in zip(places, old, strict=True)]
        else:
            places = _places(gradient, old, size, exact, scales, LOOP)
        found = aten._unsafe_index_put(empty, [None, None, *places], added, True)
        found = found.to(gradient.dtype)
        rows = gradient.dim() != 4  # of volumes as of lines
        return found.contiguous() if rows else _laid_out(found, gradient), None, None, None


def _pixels(image: Tensor, size: Sequence[Any], exact: bool, scales: Sequence[Any]) -> Tensor:
    def places(kernel: int) -> list[Tensor]:
        return _places(image, image.shape[2:], size, exact, scales, kernel)

    kernel = _kernel(image, exact, scales)
    if kernel is None:
        small = _answer(size[0] + size[1], operator.le, _SMALL, image.device)
        chosen = [_choose(small, *both) for both in zip(places(LOOP), places(TABLE), strict=True)]
    else:
        chosen = places(kernel)
    return _laid_out(aten._unsafe_index(image, [None, None, *chosen]), image)


def _laid_out(result: Tensor, like: Tensor) -> Tensor:
    """Row by row, or with channels last where those of ``like`` are, if it shows no lines."""
    return result.clone(
        memory_format=torch.contiguous_format if like.dim() == 3 else suggest_memory_format(like)
    )


def _kernel(image: Tensor, exact: bool, scales: Sequence[Any]) -> int | None:
    """Which of eager's kernels resizes an image, as far as that does not depend on the sizes."""
    if image.device.type == "cuda":
        return GPU
    if image.dim() == 3:
        return TABLE
    if not exact and image.dtype != torch.float64 and not any(map(_tells, scales)):
        return TABLE  # as good as the other one
    last = torch.channels_last if image.dim() == 4 else torch.channels_last_3d
    if image.is_contiguous(memory_format=last) and guard_or_false(image.shape[1] > _NARROW):
        return LOOP
    return TABLE if image.dim() == 5 else None


def _answer(a: Any, asked: Any, b: Any, device: torch.device) -> bool | Tensor:
    """What a relation between sizes is; if they vary a call tells, and no guard has to."""
    if type(a) is int and type(b) is int:
        return bool(asked(a, b))
    return asked(torch.full((), a, dtype=torch.int64, device=device), b)


def _choose(condition: bool | Tensor, a: Tensor, b: Tensor) -> Tensor:
    if isinstance(condition, bool):
        return a if condition else b
    return torch.where(condition, a, b)


def _tells(scale: float | None) -> bool:
    """Whether eager computes positions from a factor, not from the sizes."""
    return scale is not None and scale > 0


def _places(
    like: Tensor, given: Sequence[Any], size: Sequence[Any], exact: bool, scales: Sequence[Any],
    kernel: int,
) -> list[Tensor]:  # fmt: skip
    """Along each dimension, the pixels that are copied, in shapes that are broadcast."""
    wide = kernel == TABLE and like.dtype == torch.float64
    kind = torch.float64 if wide else torch.float32
    places = []
    for dim, (old, new, scale) in enumerate(zip(given, size, scales, strict=True)):
        pixels = torch.arange(new, device=like.device)
        number = 1.0 / scale if _tells(scale) else old / new
        step = torch.full((), number, dtype=kind, device=like.device)
        place = (_centres if exact else _corners)(pixels, step, kernel)
        place = place.to(torch.float32).to(torch.int64).clamp(max=old - 1)
        if _tells(scale):
            place = _copied(place, pixels, old, new, exact, kernel, len(size))
        places.append(place.reshape(-1, *[1] * (len(size) - 1 - dim)))
    return places


def _copied(
    place: Tensor, pixels: Tensor, old: Any, new: Any, exact: bool, kernel: int, rank: int
) -> Tensor:
    """The places, but for sizes where a kernel does without the factor that it is given."""
    if kernel == LOOP and not exact:
        place = _choose(_answer(new, operator.eq, 2 * old, pixels.device), pixels // 2, place)
    elif kernel != GPU or rank != 2:
        return place
    return _choose(_answer(new, operator.eq, old, pixels.device), pixels, place)


def _corners(pixels: Tensor, step: Tensor, kernel: int) -> Tensor:
    return pixels.to(step.dtype) * step


def _centres(pixels: Tensor, step: Tensor, kernel: int) -> Tensor:
    if kernel == GPU:
        return (pixels.to(step.dtype) + 0.5) * step
    if kernel == LOOP:
        return (pixels.to(torch.float64) + 0.5) * step.to(torch.float64)
    kind = torch.float64 if _FUSES else step.dtype  # where the product of two floats is exact
    place = (pixels.to(kind) + 0.5) * step.to(kind) - 0.5
    return place.to(step.dtype).clamp(min=0).to(torch.float64) + 0.5


def _gathering(
    like: Tensor, given: Sequence[Any], size: Sequence[Any], exact: bool, scales: Sequence[Any]
) -> list[Tensor]:
    """Along each dimension, the pixels whose gradients a GPU's kernel adds pixels' to, each the
    last one that starts before; beyond the image, it adds them to none."""
    sizes = list(zip(given, size, strict=True))
    copies = len(size) == 2 and functools.reduce(
        operator.and_, (_answer(new, operator.eq, old, like.device) for old, new in sizes)
    )
    places = []
    for dim, ((old, new), scale) in enumerate(zip(sizes, scales, strict=True)):
        pixels = torch.arange(new, device=like.device)
        number = scale if _tells(scale) else new / old
        step = torch.full((), number, dtype=torch.float32, device=like.device)
        before = 0.5 if exact else 0.0

        def start(place: Tensor, step: Tensor = step, before: float = before) -> Tensor:
            product = place.to(torch.float64) * step.to(torch.float64)  # a GPU fuses, too
            return (product - before).to(torch.float32).ceil().to(torch.int64)

        place = ((pixels.to(torch.float32) + before) / step).to(torch.int64)  # or one beside it
        place = torch.where(start(place) > pixels, place - 1, place)
        place = torch.where(start(place + 1) <= pixels, place + 1, place)
        place = _choose(copies, pixels, place)
        places.append(place.reshape(-1, *[1] * (len(size) - 1 - dim)))
    return places

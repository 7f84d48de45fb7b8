"""Image resizing: calls replaced in the captured graph, as AOTAutograd would decompose them.

Of uint8 images, eager's CPU kernels compute in fixed point; torch's decomposition computes in
float32, and one pixel in six differed. So the pass calls the operator below the decomposition, and
it stays one. Float images are interpolated with eager's sums, and nearest pixels copied from
eager's positions.

Eager refuses images without pixels. Where their number depends on data, the graph checks it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from magpy_like.compiler.passes.graph_queries import argument, aten
from magpy_like.compiler.passes.images import nearest_pixels
from magpy_like.compiler.passes.images.interpolation import resize
from magpy_like.torch_compat.dispatch import AutoDispatchBelowAutograd
from magpy_like.torch_compat.operators import NN_FUNCTIONS, check_condition

_RESIZES = {F.interpolate, F.upsample} | {
    getattr(NN_FUNCTIONS, name)
    for name in dir(NN_FUNCTIONS)
    if name.startswith(("upsample_", "_upsample_"))
}
_IMAGE_DIMS = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
"""Mode -> number of image dimensions."""
_NEAREST = {"nearest": "upsample_nearest", "nearest-exact": "_upsample_nearest_exact"}
"""Mode -> the functions' names, without the number of dimensions."""
_IN_FIXED_POINT = {
    "bilinear": aten.upsample_bilinear2d.default,
    "bicubic": aten.upsample_bicubic2d.default,
}


def check_pixel_counts(gm: GraphModule) -> None:
    """Add a check, after each resize, that image and result have pixels, in place.

    Only data-dependent sizes are checked; the call then falls back to eager, which raises.
    """
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _RESIZES]
    for node in found:
        image = argument(node, 0, "input")
        with gm.graph.inserting_after(node):
            new = gm.graph.call_function(_check_pixels, (node, image))
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    if found:
        gm.recompile()


def _check_pixels(result: Tensor, image: Tensor) -> Tensor:
    for size in (*image.shape[1:], *result.shape[2:]):
        if isinstance(size, torch.SymInt) and free_unbacked_symbols(size):
            check_condition(size > 0)
    return result


def match_eager_resizing(gm: GraphModule) -> None:
    """Replace resizing functions by ones that compute as eager's kernels do, in place."""
    for node in gm.graph.nodes:
        if node.target is F.interpolate and _is_resize(argument(node, 3, "mode", "nearest")):
            node.target = _interpolate
        elif node.op == "call_function" and node.target in _KERNELS:
            node.target = _KERNELS[node.target]
        else:
            continue
        gm.recompile()


def _is_resize(mode: str) -> bool:
    return mode in _IMAGE_DIMS or mode in _NEAREST


def _resize_as_eager(image: Tensor, like: Tensor, mode: str, corners: Any, scales: Any) -> Tensor:
    """The resized image, where ``like`` is the result of torch's decomposition."""
    if mode in _NEAREST:
        if not image.is_floating_point() and image.dtype != torch.uint8:
            return like
        return nearest_pixels.resize(image, like.shape[2:], mode == "nearest-exact", scales)
    refuses = image.device.type == "cuda" and torch.are_deterministic_algorithms_enabled()
    if image.is_floating_point() and not refuses:
        return resize(image, like.shape[2:], mode, bool(corners), scales)
    if mode not in _IN_FIXED_POINT or image.dtype != torch.uint8 or image.device.type != "cpu":
        return like
    with AutoDispatchBelowAutograd():
        size = like.shape[2:]
        return _IN_FIXED_POINT[mode](image, size, bool(corners), *(scales or [None, None]))


def _interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Like :func:`torch.nn.functional.interpolate`, which is called to check the arguments."""
    result = F.interpolate(
        input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )
    if antialias:
        return result  # torch keeps it one operator
    scales = None if recompute_scale_factor else scale_factor
    if scales is not None and not isinstance(scales, (list, tuple)):
        scales = [scales] * (input.dim() - 2)
    return _resize_as_eager(input, result, mode, align_corners, scales)


def _interpolating_kernel(mode: str) -> tuple[Any, Any]:
    """The interpolating function of ``torch._C._nn`` for ``mode``, and its replacement."""
    called = getattr(NN_FUNCTIONS, f"upsample_{mode}{_IMAGE_DIMS[mode]}d")

    def upsample(
        input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None, *more: Any
    ) -> Tensor:
        """``more`` are the scales of further dimensions, if each is an argument."""
        result = called(input, output_size, align_corners, scale_factors, *more)
        scales = scale_factors
        if scales is not None and not isinstance(scales, (list, tuple)):
            scales = (scales, *more)
        return _resize_as_eager(input, result, mode, align_corners, scales)

    return called, upsample


_SCALE_NAMES = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}


def _nearest_kernels(mode: str, rank: int) -> dict[Any, Any]:
    """Functions and operators of a nearest mode -> their replacement."""
    name = f"{_NEAREST[mode]}{rank}d"
    called, operator = getattr(NN_FUNCTIONS, name), getattr(aten, name)

    def upsample(input: Tensor, output_size: Any, *scales: Any, **named: Any) -> Tensor:
        result = called(input, output_size, *scales, **named)
        factors = named.get("scale_factors", scales[0] if scales else None)
        if not isinstance(factors, (list, tuple)):
            factors = [*scales, *map(named.get, _SCALE_NAMES[rank][len(scales) :])]
        return _resize_as_eager(input, result, mode, None, factors)

    return dict.fromkeys((called, operator, operator.vec, operator.default), upsample)


_KERNELS = dict(map(_interpolating_kernel, _IMAGE_DIMS))
for _mode in _NEAREST:
    for _rank in _SCALE_NAMES:
        _KERNELS |= _nearest_kernels(_mode, _rank)

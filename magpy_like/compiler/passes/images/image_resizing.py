"""Images that are resized: torch takes these functions apart before their operators could be told.

Of images of bytes, eager's kernels for the CPU compute in fixed point. What torch makes of them is
arithmetic of float32: a pixel in six came out as its neighbour. So the operator is called where the
graph was captured, past what takes it apart, and stays one. Images of floats are summed as eager
sums them, and pixels copied from where eager copies them.

Images without pixels eager refuses. Where only a run tells how many there are, it has to look.
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
from magpy_like.compiler.passes.images.interpolation import resized
from magpy_like.torch_compat.dispatch import AutoDispatchBelowAutograd
from magpy_like.torch_compat.operators import NN_FUNCTIONS, check_condition

_RESIZES = {F.interpolate, F.upsample} | {
    getattr(NN_FUNCTIONS, name)
    for name in dir(NN_FUNCTIONS)
    if name.startswith(("upsample_", "_upsample_"))
}
_MODES = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
"""How many dimensions an image has for each."""
_NEAREST = {"nearest": "upsample_nearest", "nearest-exact": "_upsample_nearest_exact"}
"""What the functions for images of some number of dimensions are called."""
_IN_FIXED_POINT = {
    "bilinear": aten.upsample_bilinear2d.default,
    "bicubic": aten.upsample_bicubic2d.default,
}


def check_pixel_counts(gm: GraphModule) -> None:
    """Let eager answer where it turns out that an image that is resized has no pixels."""
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _RESIZES]
    for node in found:
        image = argument(node, 0, "input")
        with gm.graph.inserting_after(node):
            new = gm.graph.call_function(_with_pixels, (node, image))
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    if found:
        gm.recompile()


def _with_pixels(result: Tensor, image: Tensor) -> Tensor:
    for size in (*image.shape[1:], *result.shape[2:]):
        if isinstance(size, torch.SymInt) and free_unbacked_symbols(size):
            check_condition(size > 0)
    return result


def match_eager_resizing(gm: GraphModule) -> None:
    """Put what eager's kernels compute in the place of what torch makes of them."""
    for node in gm.graph.nodes:
        if node.target is F.interpolate and _is_resize(argument(node, 3, "mode", "nearest")):
            node.target = _interpolate
        elif node.op == "call_function" and node.target in _KERNELS:
            node.target = _KERNELS[node.target]
        else:
            continue
        gm.recompile()


def _is_resize(mode: str) -> bool:
    return mode in _MODES or mode in _NEAREST


def _as_eager(image: Tensor, like: Tensor, mode: str, corners: Any, scales: Any) -> Tensor:
    """The image resized, given what torch makes of it."""
    if mode in _NEAREST:
        if not image.is_floating_point() and image.dtype != torch.uint8:
            return like
        return nearest_pixels.resized(image, like.shape[2:], mode == "nearest-exact", scales)
    refuses = image.device.type == "cuda" and torch.are_deterministic_algorithms_enabled()
    if image.is_floating_point() and not refuses:
        return resized(image, like.shape[2:], mode, bool(corners), scales)
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
    """As :func:`torch.nn.functional.interpolate`, which also checks the arguments."""
    result = F.interpolate(
        input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )
    if antialias:
        return result  # stays one operator
    scales = None if recompute_scale_factor else scale_factor
    if scales is not None and not isinstance(scales, (list, tuple)):
        scales = [scales] * (input.dim() - 2)
    return _as_eager(input, result, mode, align_corners, scales)


def _kernel(mode: str) -> tuple[Any, Any]:
    """The function of ``torch._C._nn`` that the other one calls, and what is called instead."""
    called = getattr(NN_FUNCTIONS, f"upsample_{mode}{_MODES[mode]}d")

    def upsample(
        input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None, *more: Any
    ) -> Tensor:
        """``more`` if each dimension has a factor of its own."""
        result = called(input, output_size, align_corners, scale_factors, *more)
        scales = scale_factors
        if scales is not None and not isinstance(scales, (list, tuple)):
            scales = (scales, *more)
        return _as_eager(input, result, mode, align_corners, scales)

    return called, upsample


_FACTORS = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}


def _nearest_kernels(mode: str, rank: int) -> dict[Any, Any]:
    """What calls one of these kernels, and what is called instead."""
    name = f"{_NEAREST[mode]}{rank}d"
    called, operator = getattr(NN_FUNCTIONS, name), getattr(aten, name)

    def upsample(input: Tensor, output_size: Any, *scales: Any, **named: Any) -> Tensor:
        result = called(input, output_size, *scales, **named)
        factors = named.get("scale_factors", scales[0] if scales else None)
        if not isinstance(factors, (list, tuple)):
            factors = [*scales, *map(named.get, _FACTORS[rank][len(scales) :])]
        return _as_eager(input, result, mode, None, factors)

    return dict.fromkeys((called, operator, operator.vec, operator.default), upsample)


_KERNELS = dict(map(_kernel, _MODES))
for _mode in _NEAREST:
    for _rank in _FACTORS:
        _KERNELS |= _nearest_kernels(_mode, _rank)

"""Images of bytes that are resized: eager's kernels for the CPU compute in fixed point.

Torch takes these functions apart into arithmetic of float32, before their operators could be told:
a pixel in six came out as its neighbour. So the operator is called where the graph was captured,
past what takes it apart, and stays one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from magpy_like.compiler.passes.graphs import argument, aten

_OPERATORS = {
    "bilinear": aten.upsample_bilinear2d.default,
    "bicubic": aten.upsample_bicubic2d.default,
}


def keep_fixed_point(gm: GraphModule) -> None:
    """Call eager's operator where such an image may be resized."""
    for node in gm.graph.nodes:
        if node.target is F.interpolate and argument(node, 3, "mode") in _OPERATORS:
            node.target = _interpolate
        elif node.op == "call_function" and node.target in _KERNELS:
            node.target = _KERNELS[node.target]
        else:
            continue
        gm.recompile()


def _in_fixed_point(a: Tensor, result: Tensor, mode: str, corners: Any, scales: Any) -> Tensor:
    """Of ``result``'s size, and by the operator if ``a`` is such an image."""
    if a.dtype != torch.uint8 or a.device.type != "cpu":
        return result
    with torch._C._AutoDispatchBelowAutograd():
        size = result.shape[2:]
        return _OPERATORS[mode](
            a, size, bool(corners), *([None, None] if scales is None else scales)
        )


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
    scales = scales if scales is None or isinstance(scales, (list, tuple)) else [scales] * 2
    return _in_fixed_point(input, result, mode, align_corners, scales)


def _kernel(mode: str) -> Any:
    """As ``torch._C._nn``'s, which is what the other one calls."""
    called = getattr(torch._C._nn, f"upsample_{mode}2d")

    def upsample(
        input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None, *more: Any
    ) -> Tensor:
        """``more`` if each dimension has a factor of its own."""
        result = called(input, output_size, align_corners, scale_factors, *more)
        scales = (scale_factors, *more) if more else scale_factors
        return _in_fixed_point(input, result, mode, align_corners, scales)

    return upsample


_KERNELS = {getattr(torch._C._nn, f"upsample_{mode}2d"): _kernel(mode) for mode in _OPERATORS}

"""Histograms: counts of elements per bin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import ops
from magpy_like.compiler.lowering.conversions import full
from magpy_like.compiler.lowering.gather_scatter import copy_of
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import aten, is_number, lower
from magpy_like.compiler.lowering.views import reshape


@lower(aten.histc.default)
def histc(graph: Graph, a: Box, bins: Any = 100, min: Any = 0, max: Any = 0) -> Box:
    """Bins of equal width from ``min`` to ``max``, both included; NaN is in none of them."""
    numbers = all(is_number(n) and not isinstance(n, sympy.Basic) for n in (bins, min, max))
    if not numbers or not (min < max and math.isfinite(min) and math.isfinite(max)):
        raise Unsupported("aten.histc", "limits computed from the elements")
    if a.dtype not in (torch.float32, torch.float64) or a.device.type != "cpu":
        raise Unsupported("aten.histc", "of this dtype, or on this device")
    if (float(max) - float(min)) * bins > torch.finfo(a.dtype).max:
        raise Unsupported("aten.histc", "a range beyond that of the dtype")
    result = copy_of(graph, full(graph, [bins], 0, a.dtype, a.device))
    if 0 in a.size:
        return result
    window = result.realize()
    flat = reshape(a, [a.numel()])
    flat.realize()

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        x = flat.load(xs)
        low, high, count = (ops.constant(float(n), a.dtype) for n in (min, max, bins))
        inside = ops.logical_and(ops.ge(x, low), ops.le(x, high))
        at = ops.truediv(ops.mul(ops.sub(x, low), count), ops.sub(high, low))
        at = ops.where(inside, at, ops.constant(0, a.dtype))
        last = ops.constant(bins - 1, torch.int64)
        bin_index = ops.minimum(ops.to_dtype(at, torch.int64), last)
        one = ops.where(inside, ops.constant(1, a.dtype), ops.constant(0, a.dtype))
        ops.store(window.buffer, window.address([ops.indirect(bin_index, bins)]), one, "add")

    graph.add_loops(flat.size, [], loops)
    return result

"""Fractional max pooling: windows at random distances. Its gradient is faster in ATen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import Expr, product
from magpy_like.compiler.ir.loop_ir import Box, Index
from magpy_like.compiler.ir.ops import Value, ops
from magpy_like.compiler.lowering.gather_scatter import lowest_value
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import aten, lower, sizes
from magpy_like.compiler.lowering.pooling import MAX_WINDOW
from magpy_like.compiler.lowering.views import reshape

_POSITION_DTYPE = torch.int32  # of positions in a plane
_FLOATS = (torch.float32, torch.float64)


def _starts(graph: Graph, samples: Box, k: int, size: Expr, out: Expr, window: int) -> Box:
    """[..., out]: start of each window of a plane, by the plane's ``k``-th random number."""
    last = int(size) - window

    def inner(index: Index) -> Value:
        *plane, o = index
        end = ops.constant(last, _POSITION_DTYPE)
        if out == 1:
            return end
        sample = samples.load([*plane, sympy.Integer(k)])
        step = ops.truediv(ops.constant(last, sample.dtype), ops.constant(out - 1, sample.dtype))
        at = ops.to_dtype(ops.index_expr(o, torch.int64), sample.dtype)
        position = ops.to_dtype(ops.mul(ops.add(at, sample), step), _POSITION_DTYPE)
        start = ops.sub(position, ops.to_dtype(ops.mul(sample, step), _POSITION_DTYPE))
        is_last = ops.eq(ops.index_expr(o, torch.int64), ops.constant(out - 1, torch.int64))
        return ops.where(is_last, end, start)

    starts = loop_ir.pointwise(
        graph, samples.device, _POSITION_DTYPE, [*samples.size[:-1], out], inner, [samples],
        operations=12,
    )  # fmt: skip
    starts.realize()
    return starts


def _max_pool(order: Sequence[int]) -> Callable[..., list[Box]]:
    """Lowering for planes of ``len(order)`` dimensions; ``order``: random number of each
    dimension."""
    rank = len(order)

    def lowering(
        graph: Graph, a: Box, window: Sequence[int], out: Sequence[Any], samples: Box
    ) -> list[Box]:
        if a.dtype not in _FLOATS or a.device.type != "cpu" or 0 in a.size:
            raise Unsupported("fractional pooling", "of this dtype or device, or of no elements")
        count = math.prod(int(n) for n in window)
        lead, extent = a.size[:-rank], a.size[-rank:]
        static = all(size.is_Integer for size in (*extent, *sizes(out)))
        if not static or product(extent) >= 2**31:
            raise Unsupported("fractional pooling", "symbolic sizes, or a large plane")
        if count > MAX_WINDOW or samples.dtype != a.dtype:
            raise Unsupported("fractional pooling", "a large window, or two dtypes")
        if len(lead) == 1:
            samples = reshape(samples, [lead[0], sympy.Integer(rank)])
        a.realize()
        starts = [
            _starts(graph, samples, k, size, n, int(wide))
            for k, size, n, wide in zip(order, extent, sizes(out), window, strict=True)
        ]

        def best(index: Index) -> tuple[Value, Value]:
            plane, outer = list(index[:-rank]), index[-rank:]
            begin = [s.load([*plane, o]) for s, o in zip(starts, outer, strict=True)]
            top: Value = ops.constant(lowest_value(a.dtype), a.dtype)
            where: Value | None = None
            for offsets in itertools.product(*(range(int(n)) for n in window)):
                at = [
                    ops.add(b, ops.constant(offset, _POSITION_DTYPE))
                    for b, offset in zip(begin, offsets, strict=True)
                ]
                flat = at[0]
                for coordinate, size in zip(at[1:], extent[1:], strict=True):
                    flat = ops.add(ops.mul(flat, ops.constant(size, _POSITION_DTYPE)), coordinate)
                position = [ops.indirect(p, size) for p, size in zip(at, extent, strict=True)]
                value = a.load([*plane, *position])
                better = ops.logical_or(ops.gt(value, top), ops.isnan(value))
                top = ops.where(better, value, top)
                where = flat if where is None else ops.where(better, flat, where)
            assert where is not None
            return top, ops.to_dtype(where, torch.int64)

        return [
            loop_ir.pointwise(
                graph, a.device, dtype, [*lead, *sizes(out)],
                lambda index, k=k: best(index)[k], [a, *starts],  # type: ignore[misc]
                operations=8 * count, expensive=True,
            )
            for k, dtype in enumerate((a.dtype, torch.int64))
        ]  # fmt: skip

    return lowering


lower(aten.fractional_max_pool2d.default)(_max_pool((1, 0)))
lower(aten.fractional_max_pool3d.default)(_max_pool((0, 1, 2)))

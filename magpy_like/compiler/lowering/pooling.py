"""Pooling over small windows, unrolled: one masked load per window element."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler import ir
from magpy_like.compiler.errors import Unsupported
from magpy_like.compiler.graph import Graph
from magpy_like.compiler.indexing import Expr, flatten
from magpy_like.compiler.ir import Box, Index
from magpy_like.compiler.lowering.registry import aten, lower, sizes
from magpy_like.compiler.ops import Value, compute_dtype, ops

MAX_WINDOW = 25  # elements; a larger window is a loop, and ATen has that loop


def _per_dim(value: Any, count: int, default: Sequence[int] = ()) -> list[int]:
    """A pooling parameter as one int per spatial dimension."""
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    if not listed:
        return list(default)
    return [int(v) for v in listed] * (count if len(listed) == 1 else 1)


class _Window:
    """The elements of the input under one output element: positions, and which are inside."""

    def __init__(
        self, a: Box, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
    ) -> None:
        elements = 1
        for k in kernel:
            elements *= k
        if elements > MAX_WINDOW or 0 in a.size:
            raise Unsupported("pooling", "a large window, or no elements")
        self.a, self.kernel, self.stride = a, kernel, stride
        self.padding, self.dilation = padding, dilation
        self.spatial = a.size[len(a.size) - len(kernel) :]

    def elements(self, index: Index) -> list[tuple[list[Expr], Value | None]]:
        """(position in the input, inside or None when it always is), in row-major order."""
        rank = len(self.kernel)
        lead, outer = list(index[: len(index) - rank]), index[len(index) - rank :]
        found = []
        for offsets in itertools.product(*map(range, self.kernel)):
            at = [
                o * s - p + k * d
                for o, s, p, k, d in zip(
                    outer, self.stride, self.padding, offsets, self.dilation, strict=True
                )
            ]
            inside: Value | None = None
            for position, size in zip(at, self.spatial, strict=True):
                i = ops.index_expr(position, torch.int64)
                test = ops.logical_and(
                    ops.ge(i, ops.constant(0, torch.int64)),
                    ops.lt(i, ops.index_expr(size, torch.int64)),
                )
                inside = test if inside is None else ops.logical_and(inside, test)
            found.append(([*lead, *at], inside))
        return found

    def load(self, position: list[Expr], inside: Value | None, other: float) -> Value:
        if inside is None:
            return self.a.load(position)
        return ops.masked(inside, lambda: self.a.load(position), other)


@lower(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    graph: Graph, a: Box, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[Box]:  # fmt: skip
    """(maximum, its flat position in the plane). The last NaN of a window wins, as in eager."""
    assert graph._origin is not None
    if not a.dtype.is_floating_point:
        raise Unsupported("max_pool2d", "of integers")
    kernel = _per_dim(kernel, 2)
    window = _Window(
        a, kernel, _per_dim(stride, 2, kernel), _per_dim(padding, 2), _per_dim(dilation, 2)
    )
    size = sizes(graph._origin.meta["val"][0].shape)
    a.realize()

    def best(index: Index) -> tuple[Value, Value]:
        low = float("-inf")
        top = ops.constant(low, a.dtype)
        where = ops.constant(0, torch.int64)
        seen = ops.constant(False, torch.bool)
        for position, inside in window.elements(index):
            assert inside is not None
            value = window.load(position, inside, low)
            better = ops.logical_or(ops.gt(value, top), ops.isnan(value))
            better = ops.logical_and(inside, ops.logical_or(better, ops.logical_not(seen)))
            flat = flatten(position[-2:], window.spatial)
            top = ops.where(better, value, top)
            where = ops.where(better, ops.index_expr(flat, torch.int64), where)
            seen = ops.logical_or(seen, inside)
        return top, where

    cost = 6 * kernel[0] * kernel[1]
    values = ir.pointwise(
        graph, a.device, a.dtype, size, lambda i: best(i)[0], [a], operations=cost, expensive=True
    )
    places = ir.pointwise(
        graph, a.device, torch.int64, size, lambda i: best(i)[1], [a], operations=cost,
        expensive=True,
    )  # fmt: skip
    return [values, places]


@lower(aten.avg_pool2d.default)
def avg_pool2d(
    graph: Graph, a: Box, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Box:  # fmt: skip
    assert graph._origin is not None
    kernel, padding = _per_dim(kernel, 2), _per_dim(padding, 2)
    padded = any(padding)
    if not a.dtype.is_floating_point or ceil_mode:
        raise Unsupported("avg_pool2d", "of integers, or windows that hang over")
    window = _Window(a, kernel, _per_dim(stride, 2, kernel), padding, [1, 1])
    size = sizes(graph._origin.meta["val"].shape)
    compute = compute_dtype(a.dtype)
    a.realize()

    def inner(index: Index) -> Value:
        total = ops.constant(0, compute)
        count = ops.constant(0, compute)
        for position, inside in window.elements(index):
            total = ops.add(total, window.load(position, inside if padded else None, 0))
            if inside is not None:
                count = ops.add(count, ops.to_dtype(inside, compute))
        if divisor_override:
            count = ops.constant(divisor_override, compute)
        elif count_include_pad or not padded:
            count = ops.constant(sympy.Integer(kernel[0] * kernel[1]), compute)
        return ops.truediv(total, count)

    return ir.pointwise(
        graph, a.device, a.dtype, size, inner, [a], operations=4 * kernel[0] * kernel[1],
        expensive=True,
    )  # fmt: skip

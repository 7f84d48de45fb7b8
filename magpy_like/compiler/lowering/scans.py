"""Scans: running sums, products and extrema along a dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import LOW_PRECISION, Value, compute_dtype, ops
from magpy_like.compiler.lowering.conversions import clone, full
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    aten,
    canonical_dim,
    convert,
    convert_first,
    lower,
)


def _scan(
    graph: Graph, a: Box, dim: int, dtypes: Sequence[torch.dtype],
    function: Callable[[Value, Expr], Sequence[Value]],
) -> list[Box]:  # fmt: skip
    """Run ``function(element, its position along dim)`` in order along ``dim``."""
    buffers = [graph.new_buffer(dtype, a.device, a.size, a.stride_hint) for dtype in dtypes]
    stride = buffers[0].stride
    others = [d for d in graph.stride_order(stride, a.size) if d != dim]

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        index: list[Expr] = [sympy.S.Zero] * len(a.size)
        for d, x in zip(others, xs, strict=True):
            index[d] = x
        (index[dim],) = rs
        for buffer, result in zip(buffers, function(a.load(index), rs[0]), strict=True):
            if result.dtype != compute_dtype(buffer.dtype):
                result = ops.to_dtype(result, buffer.dtype)
            ops.store(buffer.name, buffer.address(index), result)

    graph.add_loops([a.size[d] for d in others], [a.size[dim]], loops)
    return [graph.box(b) for b in buffers]


def _lower_scan(kind: str) -> Callable[..., Box]:
    def lowering(graph: Graph, a: Box, dim: int, *, dtype: Any = None) -> Box:
        result = dtype or (a.dtype if a.dtype.is_floating_point else torch.int64)
        if result not in loop_ir.LOOP_DTYPES or result == torch.bool or 0 in a.size:
            raise Unsupported(kind, f"to {result}, or of no elements")
        if not a.size:
            return _convert_scalar(graph, a, result)
        at = canonical_dim(dim, len(a.size))
        if a.device.type != "cpu":
            _check_gpu(graph, kind, a, at, result)

        def function(value: Value, position: Expr) -> Sequence[Value]:
            return [ops.scan(kind, convert_first(value, a.dtype, result))]

        return _scan(graph, a, at, [result], function)[0]

    return lowering


#: Elements of a single row that one block may scan.
MAX_SINGLE_ROW = 8192


def _check_gpu(graph: Graph, kind: str, a: Box, dim: int, dtype: torch.dtype) -> None:
    """Raise Unsupported where eager must, or should, scan.

    Eager shares a single row among all multiprocessors. *Measured* on an H100: 4 million elements
    in 0.03 ms, against 1.7 ms by one block.
    """
    if dtype in LOW_PRECISION:
        raise Unsupported("a scan", "eager rounds at every step")
    if kind == "sum" and dtype.is_floating_point and torch.are_deterministic_algorithms_enabled():
        raise Unsupported("aten.cumsum", "eager has no deterministic algorithm")
    if all(size == 1 for d, size in enumerate(a.size) if d != dim):
        if graph.hint(a.size[dim]) > MAX_SINGLE_ROW:
            raise Unsupported("a scan", "a long row by itself is shared among programs")


def _convert_scalar(graph: Graph, a: Box, dtype: torch.dtype) -> Box:
    return loop_ir.pointwise(
        graph, a.device, dtype, a.size, lambda index: convert(a.load(index), a.dtype, dtype), [a]
    )


cumsum = lower(aten.cumsum.default)(_lower_scan("sum"))
cumprod = lower(aten.cumprod.default)(_lower_scan("prod"))


@lower(aten.logcumsumexp.default)
def logcumsumexp(graph: Graph, a: Box, dim: int) -> Box:
    if not a.dtype.is_floating_point:
        raise Unsupported("aten.logcumsumexp", "of integers")
    return _lower_scan("logsumexp")(graph, a, dim)


def _lower_extremum(kind: str) -> Callable[..., list[Box]]:
    def lowering(graph: Graph, a: Box, dim: int) -> list[Box]:
        if not a.size:
            return [clone(graph, a), full(graph, [], 0, torch.int64, a.device)]
        if 0 in a.size or a.dtype == torch.bool:
            raise Unsupported(kind, "of bools or of no elements")

        def function(value: Value, position: Expr) -> Sequence[Value]:
            at = ops.index_expr(position, torch.int64)
            return [ops.scan(kind, value), ops.scan(f"arg{kind}", value, at)]

        dtypes = [a.dtype, torch.int64]
        return _scan(graph, a, canonical_dim(dim, len(a.size)), dtypes, function)

    return lowering


cummax = lower(aten.cummax.default)(_lower_extremum("max"))
cummin = lower(aten.cummin.default)(_lower_extremum("min"))

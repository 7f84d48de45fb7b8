"""Concatenation, padding and writes to slices; concatenated parts are stored straight into the
result."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box, Computed, Cost, Index, pointwise
from magpy_like.compiler.ir.ops import Value, ops
from magpy_like.compiler.lowering.aten_graph_properties import dense_stride
from magpy_like.compiler.lowering.conversions import clone, full, to_dtype
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    LOWERINGS,
    aten,
    canonical_dim,
    common_device,
    lower,
    sizes,
)
from magpy_like.compiler.lowering.views import from_end, reshape, slice_box, slice_start
from magpy_like.compiler.passes.graph_queries import consumers

MAX_SELECTED_PARTS = 4
"""Parts of a concatenation up to which its reader selects among them."""
_PRODUCTS = {aten.mm.default, aten.addmm.default}


@lower(aten.cat.default)
def cat(graph: Graph, tensors: Sequence[Box], dim: int = 0) -> Box:
    assert graph.origin is not None
    meta = graph.origin.meta["val"]
    # Eager ignores empty 1-d tensors, whatever the rank of the others.
    parts = [t for t in tensors if not (len(t.size) == 1 and t.size[0] == 0 and meta.dim() != 1)]
    common_device(list(tensors))
    dim = canonical_dim(dim, meta.dim())
    if _is_selected_by_reader(graph, parts):
        return _selection(graph, [_converted(graph, p, meta.dtype) for p in parts], dim)
    buffer = graph.new_buffer(meta.dtype, tensors[0].device, sizes(meta.shape), dense_stride(meta))
    graph.concatenated.add(buffer.name)
    whole = graph.box(buffer)
    start: Expr = sympy.S.Zero
    for part in parts:
        length = part.size[dim]
        target = slice_box(whole, dim, start, sympy.S.One, length)
        graph.store_into(_converted(graph, part, meta.dtype), target)
        start = start + length
    return whole


def _converted(graph: Graph, part: Box, dtype: torch.dtype) -> Box:
    return part if part.dtype == dtype else to_dtype(graph, part, dtype)


def _is_selected_by_reader(graph: Graph, parts: Sequence[Box]) -> bool:
    """True if the one reader of a concatenation selects each element's part: on a GPU a kernel
    less, such as for the halves of a rotary embedding."""
    assert graph.origin is not None
    if parts[0].device.type != "cuda" or not 2 <= len(parts) <= MAX_SELECTED_PARTS:
        return False
    readers = [node.target for node in consumers(graph.origin)]
    if len(readers) != 1 or readers[0] not in LOWERINGS or readers[0] in _PRODUCTS:
        return False
    return not any(0 in part.size or part.cost().is_expensive for part in parts)


def _selection(graph: Graph, parts: Sequence[Box], dim: int) -> Box:
    """The concatenation as a choice for each element; it reads its own part alone."""
    ends = list(itertools.accumulate(part.size[dim] for part in parts))
    size = [*parts[0].size[:dim], ends[-1], *parts[0].size[dim + 1 :]]

    def inner(index: Index) -> Value:
        position = ops.index_expr(index[dim], torch.int64)
        value = None
        for k, (part, start, end) in enumerate(zip(parts, [0, *ends], ends, strict=False)):
            tests = []
            if k > 0:
                tests.append(ops.ge(position, ops.index_expr(start, torch.int64)))
            if k < len(parts) - 1:
                tests.append(ops.lt(position, ops.index_expr(end, torch.int64)))
            at = [*index[:dim], index[dim] - start, *index[dim + 1 :]]
            inside = functools.reduce(ops.logical_and, tests)
            chosen = ops.masked(inside, functools.partial(part.load, at), 0)
            value = chosen if value is None else ops.where(inside, chosen, value)
        assert value is not None
        return value

    first = parts[0]
    return pointwise(
        graph, first.device, first.dtype, size, inner, parts, operations=4 * len(parts)
    )


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(graph: Graph, a: Box, pad: Sequence[Any], value: Any = 0) -> Box:
    """Padding as masked loads; a negative amount crops."""
    assert graph.origin is not None
    size = sizes(graph.origin.meta["val"].shape)
    rank = len(a.size)
    low: list[Expr] = [sympy.S.Zero] * rank
    high: list[Expr] = [sympy.S.Zero] * rank
    amounts = sizes(pad)
    for k in range(len(amounts) // 2):
        low[rank - 1 - k], high[rank - 1 - k] = amounts[2 * k], amounts[2 * k + 1]

    def inner(index: Index) -> Value:
        position = [i - p for i, p in zip(index, low, strict=True)]
        inside: Value | None = None
        for i, p, q, s in zip(position, low, high, a.size, strict=True):
            tests = []
            if not graph.is_known(p <= 0):
                tests.append(ops.ge(ops.index_expr(i, torch.int64), ops.constant(0, torch.int64)))
            if not graph.is_known(q <= 0):
                tests.append(ops.lt(ops.index_expr(i, torch.int64), ops.index_expr(s, torch.int64)))
            for test in tests:
                inside = test if inside is None else ops.logical_and(inside, test)
        if inside is None:
            return a.load(position)
        return ops.masked(inside, lambda: a.load(position), value)

    if 0 in a.size:
        return full(graph, size, value, a.dtype, a.device)
    return pointwise(graph, a.device, a.dtype, size, inner, [a], operations=4)


def _overlay(graph: Graph, base: Box, dim: int, start: Expr, step: Expr, part: Box) -> Box:
    """``base`` with every ``step``-th slice from ``start`` along ``dim`` replaced by ``part``."""
    length = part.size[dim]

    def inner(index: Index) -> Value:
        i = ops.index_expr(index[dim], torch.int64)
        low = ops.index_expr(start, torch.int64)
        high = ops.index_expr(start + length * step, torch.int64)
        inside = ops.logical_and(ops.ge(i, low), ops.lt(i, high))
        if step != 1:
            offset = ops.sub(i, low)
            rest = ops.remainder(offset, ops.index_expr(step, torch.int64))
            inside = ops.logical_and(inside, ops.eq(rest, ops.constant(0, torch.int64)))
        position = list(index)
        shifted = index[dim] - start
        if step != 1:
            quotient = ops.floordiv(
                ops.index_expr(shifted, torch.int64), ops.index_expr(step, torch.int64)
            )
            position[dim] = ops.indirect(quotient, length)
        else:
            position[dim] = shifted
        value = ops.masked(inside, lambda: part.load(position), 0)
        return ops.where(inside, value, base.load(index))

    cost = base.cost() + part.cost() + Cost(4, False, frozenset())
    return Box(graph, base.dtype, base.device, list(base.size), Computed(inner, cost))


@lower(aten.slice_scatter.default)
def slice_scatter(
    graph: Graph, a: Box, source: Box, dim: int = 0, start: Any = None, end: Any = None,
    step: Any = 1,
) -> Box:  # fmt: skip
    dim = canonical_dim(dim, len(a.size))
    low = slice_start(graph, a.size[dim], start)
    if source.device != a.device:
        raise Unsupported("aten.slice_scatter", "another device")
    if 0 in source.size:
        return clone(graph, a)
    part = source if source.dtype == a.dtype else to_dtype(graph, source, a.dtype)
    return _overlay(graph, a, dim, low, sympy.sympify(step), part)


@lower(aten.diagonal_scatter.default)
def diagonal_scatter(
    graph: Graph, a: Box, source: Box, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Box:
    rank = len(a.size)
    first, second = canonical_dim(dim1, rank), canonical_dim(dim2, rank)
    if source.device != a.device or 0 in source.size or source.dtype != a.dtype:
        raise Unsupported("aten.diagonal_scatter", "another device or dtype, or no elements")

    def inner(index: Index) -> Value:
        i, j = (ops.index_expr(index[d], torch.int64) for d in (first, second))
        inside = ops.eq(ops.sub(j, i), ops.constant(int(offset), torch.int64))
        rest = [index[d] for d in range(rank) if d not in (first, second)]
        position = [*rest, index[first] - max(-int(offset), 0)]
        value = ops.masked(inside, lambda: source.load(position), 0)
        return ops.where(inside, value, a.load(index))

    cost = a.cost() + source.cost() + Cost(4, False, frozenset())
    return Box(graph, a.dtype, a.device, list(a.size), Computed(inner, cost))


@lower(aten.select_scatter.default)
def select_scatter(graph: Graph, a: Box, source: Box, dim: int, index: Any) -> Box:
    dim = canonical_dim(dim, len(a.size))
    position = sympy.sympify(index)
    position = from_end(graph, position, a.size[dim])
    if not graph.is_known(position < a.size[dim]):
        raise Unsupported("aten.select_scatter", "an index that may be out of range")
    part = source if source.dtype == a.dtype else to_dtype(graph, source, a.dtype)
    shape = [*part.size[:dim], sympy.S.One, *part.size[dim:]]
    return _overlay(graph, a, dim, position, sympy.S.One, reshape(part, shape))

"""Pooling and its gradients.

Small windows are unrolled, one masked load per element; means and maxima of large ones are loops.
Cases in which ATen's loops are faster stay with ATen.

A gradient is a gather as well: each input element adds up the outputs whose windows cover it, so
every loop is parallel. Only the gradient of maxima is a scatter on the CPU, plane by plane.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import (
    Div,
    Expr,
    contiguous_strides,
    flatten,
    product,
)
from magpy_like.compiler.ir.loop_ir import Box, Index
from magpy_like.compiler.ir.ops import Value, compute_dtype, ops
from magpy_like.compiler.ir.size_names import expr
from magpy_like.compiler.lowering.conversions import full
from magpy_like.compiler.lowering.gather_scatter import lowest_value
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import aten, lower, sizes

#: Elements of a window that are unrolled; a larger window is a loop.
MAX_WINDOW = 64


def _per_dim(value: Any, count: int, default: Sequence[int] = ()) -> list[int]:
    """A pooling parameter as one int per spatial dimension."""
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    if not listed:
        return list(default)
    return [int(v) for v in listed] * (count if len(listed) == 1 else 1)


def _integer(e: Any) -> Value:
    return ops.index_expr(e, torch.int64)


def _conjunction(tests: Sequence[Value]) -> Value | None:
    """The conjunction of tests; None denotes no test."""
    result: Value | None = None
    for test in tests:
        result = test if result is None else ops.logical_and(result, test)
    return result


# (index, offset) -> (mapped index, tests that it exists).
AxisMap = Callable[[Expr, int | Expr], tuple[Expr, list[Value]]]


@dataclass(frozen=True)
class PoolingAxis:
    """The pooling of one spatial dimension of ``size`` to ``out``.

    ``element(o, k)``: the k-th input position in the window of output ``o``, with tests that it
    exists. ``covering(h, j)``: the j-th output whose window may cover input position ``h``, with
    tests. ``divisor(o)``: the number of elements an average of output ``o`` divides by.
    ``elements`` and ``max_coverings`` bound k and j.
    """

    size: Expr
    out: Expr
    elements: int
    max_coverings: int
    element: AxisMap
    covering: AxisMap
    divisor: Callable[[Expr], Value]


def _fixed_windows(
    size: Expr, out: Expr, kernel: int, stride: int, padding: int, dilation: int = 1,
    *, count_padding: bool = True,
) -> PoolingAxis:  # fmt: skip
    """Windows of equal size at equal distances."""

    def element(o: Expr, k: int | Expr) -> tuple[Expr, list[Value]]:
        at = o * stride - padding + k * dilation
        tests = []
        first, last = (k, k) if isinstance(k, int) else (0, kernel - 1)
        if first * dilation < padding:
            tests.append(ops.ge(_integer(at), _integer(sympy.S.Zero)))
        end = (out - 1) * stride - padding + last * dilation
        if not (end.is_Integer and size.is_Integer and end < size):
            tests.append(ops.lt(_integer(at), _integer(size)))
        return at, tests

    def dilated_covering(h: Expr, k: int | Expr) -> tuple[Expr, list[Value]]:
        reach = h + padding - k * dilation
        o = Div(reach, sympy.Integer(stride))
        tests = [ops.ge(_integer(reach), _integer(sympy.S.Zero)),
                 ops.eq(_integer(o * stride), _integer(reach)),
                 ops.lt(_integer(o), _integer(out))]  # fmt: skip
        return o, tests

    def covering(h: Expr, j: int | Expr) -> tuple[Expr, list[Value]]:
        o = Div(h + padding, sympy.Integer(stride)) - j
        at = _integer(o)
        offset = _integer(h + padding - o * stride)
        tests = [ops.ge(at, _integer(sympy.S.Zero)), ops.lt(at, _integer(out)),
                 ops.lt(offset, _integer(sympy.Integer(kernel)))]  # fmt: skip
        return o, tests

    def divisor(o: Expr) -> Value:
        start = _integer(o * stride - padding)
        end = ops.minimum(ops.add(start, _integer(sympy.Integer(kernel))), _integer(size + padding))
        if not count_padding:
            start = ops.maximum(start, _integer(sympy.S.Zero))
            end = ops.minimum(end, _integer(size))
        return ops.sub(end, start)

    if dilation > 1:  # one covering output per element of the window
        return PoolingAxis(size, out, kernel, kernel, element, dilated_covering, divisor)
    return PoolingAxis(size, out, kernel, -(-kernel // stride), element, covering, divisor)


def _adaptive_windows(size: Expr, out: Expr) -> PoolingAxis:
    """Windows that partition ``size`` positions among ``out`` outputs."""
    if not (size.is_Integer and out.is_Integer):
        raise Unsupported("adaptive pooling", "symbolic sizes")
    exact = int(size) % int(out) == 0

    def bounds(o: Expr) -> tuple[Expr, Expr]:
        return Div(o * size, out), Div((o + 1) * size + out - 1, out)

    def element(o: Expr, k: int | Expr) -> tuple[Expr, list[Value]]:
        start, end = bounds(o)
        at = start + k
        return at, [] if exact else [ops.lt(_integer(at), _integer(end))]

    def covering(h: Expr, j: int | Expr) -> tuple[Expr, list[Value]]:
        o = Div(h * out, size) + j
        if exact:
            return o, []
        inside = ops.minimum(_integer(o), _integer(out - 1))
        start = ops.floordiv(ops.mul(inside, _integer(size)), _integer(out))
        tests = [ops.lt(_integer(o), _integer(out)), ops.le(start, _integer(h))]
        return o, tests

    def divisor(o: Expr) -> Value:
        start, end = bounds(o)
        return _integer(end - start)

    elements = int(size) // int(out) if exact else math.ceil(int(size) / int(out)) + 1
    max_coverings = 1 if exact else math.ceil(int(out) / int(size)) + 1
    return PoolingAxis(size, out, elements, max_coverings, element, covering, divisor)


def _window_elements(
    axes: Sequence[PoolingAxis], index: Index
) -> Iterator[tuple[list[Expr], Value | None]]:
    """(input position, test that it exists) of each element of a window, in row-major order."""
    for offsets in itertools.product(*(range(a.elements) for a in axes)):
        yield _element(axes, index, offsets)


def _element(
    axes: Sequence[PoolingAxis], index: Index, offsets: Sequence[int | Expr]
) -> tuple[list[Expr], Value | None]:
    return _map_axes(axes, index, [a.element for a in axes], offsets)


def _covering_outputs(
    axes: Sequence[PoolingAxis], index: Index
) -> Iterator[tuple[list[Expr], Value | None]]:
    """(output index, test that its window covers ``index``) of each candidate."""
    for offsets in itertools.product(*(range(a.max_coverings) for a in axes)):
        yield _covering_output(axes, index, offsets)


def _covering_output(
    axes: Sequence[PoolingAxis], index: Index, offsets: Sequence[int | Expr]
) -> tuple[list[Expr], Value | None]:
    return _map_axes(axes, index, [a.covering for a in axes], offsets)


def _map_axes(
    axes: Sequence[PoolingAxis],
    index: Index,
    maps: Sequence[AxisMap],
    offsets: Sequence[int | Expr],
) -> tuple[list[Expr], Value | None]:
    """``index`` with its pooled dimensions mapped, and the test that all exist."""
    outer = len(index) - len(axes)
    found = [axis_map(i, k) for axis_map, i, k in zip(maps, index[outer:], offsets, strict=True)]
    return [*index[:outer], *(at for at, _ in found)], _conjunction(
        [t for _, tests in found for t in tests]
    )


def _masked(inside: Value | None, body: Callable[[], Value], other: float) -> Value:
    return body() if inside is None else ops.masked(inside, body, other)


def _windows_overlap(graph: Graph, axes: Sequence[PoolingAxis]) -> bool:
    """True if windows overlap so much that ATen's loops are faster."""
    held = math.prod(axis.elements * graph.hint(axis.out) for axis in axes)
    return held > 2 * math.prod(graph.hint(axis.size) for axis in axes)


def _result_meta(graph: Graph) -> Any:
    assert graph.origin is not None
    return graph.origin.meta["val"]


# --- maximum --------------------------------------------------------------------------------------


def _max_pool(graph: Graph, a: Box, axes: Sequence[PoolingAxis]) -> list[Box]:
    """(maximum, its flat position among the pooled dimensions). The last NaN of a window wins."""
    size = sizes(_result_meta(graph)[0].shape)
    if 0 in size or 0 in a.size:
        return [full(graph, size, 0, dtype, a.device) for dtype in (a.dtype, torch.int64)]
    a.realize()
    count = math.prod(axis.elements for axis in axes)
    if count > MAX_WINDOW:
        origin = graph.origin
        used = graph.used_results(origin.target) if origin else None
        if used is None or 1 in used or _windows_overlap(graph, axes):
            raise Unsupported("pooling", "large windows that overlap, or positions in large ones")
        return [_large_max(graph, a, axes, size), full(graph, size, 0, torch.int64, a.device)]
    floating = a.dtype.is_floating_point
    low = lowest_value(a.dtype)

    def best(index: Index) -> tuple[Value, Value]:
        top = ops.constant(low, a.dtype)
        where = ops.constant(0, torch.int64)
        found_any = ops.constant(False, torch.bool)
        for position, inside in _window_elements(axes, index):
            value = _masked(inside, lambda p=position: a.load(p), low)  # type: ignore[misc]
            better = ops.gt(value, top)
            if floating:
                better = ops.logical_or(better, ops.isnan(value))
            better = ops.logical_or(better, ops.logical_not(found_any))
            if inside is not None:
                better = ops.logical_and(inside, better)
            flat = flatten(position[len(position) - len(axes) :], [axis.size for axis in axes])
            top = ops.where(better, value, top)
            where = ops.where(better, _integer(flat), where)
            found_any = ops.logical_or(found_any, better)
        return top, where

    return [
        loop_ir.pointwise(
            graph, a.device, dtype, size, lambda index, k=k: best(index)[k], [a],  # type: ignore[misc]
            operations=6 * count, expensive=True,
        )
        for k, dtype in enumerate((a.dtype, torch.int64))
    ]  # fmt: skip


def _large_max(graph: Graph, a: Box, axes: Sequence[PoolingAxis], size: list[Expr]) -> Box:
    """The maximum without its position, as a reduction over the window."""
    low = lowest_value(a.dtype)
    buffer = graph.new_buffer(a.dtype, a.device, size)

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        position, inside = _element(axes, xs, rs)
        value = _masked(inside, lambda: a.load(position), low)
        ops.store(buffer.name, buffer.address(xs), ops.reduction("max", value))

    graph.add_loops(size, [sympy.Integer(axis.elements) for axis in axes], loops)
    return graph.box(buffer)


def _max_pool_nd(rank: int) -> Callable[..., list[Box]]:
    def lowering(
        graph: Graph, a: Box, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> list[Box]:  # fmt: skip
        out = sizes(_result_meta(graph)[0].shape)[-rank:]
        kernel = _per_dim(kernel, rank)
        parameters = zip(
            a.size[-rank:], out, kernel, _per_dim(stride, rank, kernel), _per_dim(padding, rank),
            _per_dim(dilation, rank), strict=True,
        )  # fmt: skip
        return _max_pool(graph, a, [_fixed_windows(*p) for p in parameters])

    return lowering


lower(aten.max_pool2d_with_indices.default)(_max_pool_nd(2))
lower(aten.max_pool3d_with_indices.default)(_max_pool_nd(3))


def _adaptive_max_pool(graph: Graph, a: Box, out: Sequence[Any]) -> list[Box]:
    rank = len(out)
    axes = [_adaptive_windows(s, expr(o)) for s, o in zip(a.size[-rank:], out, strict=True)]
    return _max_pool(graph, a, axes)


lower(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)(_adaptive_max_pool)


def _max_backward(
    graph: Graph, grad: Box, a: Box, indices: Box, axes: Sequence[PoolingAxis]
) -> Box:
    if 0 in a.size or 0 in grad.size:
        return full(graph, a.size, 0, a.dtype, a.device)
    grad.realize()
    indices.realize()
    if a.device.type == "cpu":
        return _max_scatter(graph, grad, a, indices, len(axes))
    count = math.prod(axis.max_coverings for axis in axes)
    if count > MAX_WINDOW:
        raise Unsupported("pooling", "gradients of many windows over an element")
    compute = compute_dtype(a.dtype)

    def inner(index: Index) -> Value:
        here = _integer(flatten(index[len(index) - len(axes) :], [axis.size for axis in axes]))
        total = ops.constant(0, compute)
        for output, inside in _covering_outputs(axes, index):
            chosen = _masked(inside, lambda o=output: indices.load(o), -1)  # type: ignore[misc]
            test = ops.eq(chosen, here)
            total = ops.add(total, _masked(test, lambda o=output: grad.load(o), 0))  # type: ignore[misc]
        return total

    return loop_ir.pointwise(
        graph, a.device, a.dtype, a.size, inner, [grad, indices], operations=6 * count,
        expensive=True,
    )  # fmt: skip


def _max_scatter(graph: Graph, grad: Box, a: Box, indices: Box, rank: int) -> Box:
    """The gradient of each window, scattered to the position of its maximum.

    There are fewer windows than pairs of an element and a covering window, and each thread has
    planes of its own.
    """
    lead, planes = a.size[: len(a.size) - rank], a.size[len(a.size) - rank :]
    stride = sizes(_result_meta(graph).stride())
    if stride[-rank:] != [s * stride[-1] for s in contiguous_strides(planes)]:
        stride = contiguous_strides(a.size)  # positions of a plane must be one multiple of a step
    result = graph.box(graph.new_buffer(a.dtype, a.device, a.size, stride))
    graph.store_into(full(graph, a.size, 0, a.dtype, a.device), result)
    window, plane = result.realize(), product(planes)

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        at, none = indices.load(xs), ops.constant(0, torch.int64)
        there = ops.logical_and(ops.ge(at, none), ops.lt(at, _integer(plane)))
        value = ops.where(there, grad.load(xs), ops.constant(0, compute_dtype(a.dtype)))
        j = ops.indirect(ops.where(there, at, none), plane)
        address = window.address([*xs[: len(lead)], *[sympy.S.Zero] * (rank - 1), j])
        ops.store(window.buffer, address, value, "add")

    graph.add_loops(grad.size, [], loops)
    return result


def _max_pool_backward(rank: int) -> Callable[..., Box]:
    def lowering(
        graph: Graph, grad: Box, a: Box, kernel: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool, indices: Box,
    ) -> Box:  # fmt: skip
        kernel = _per_dim(kernel, rank)
        parameters = zip(
            a.size[-rank:], grad.size[-rank:], kernel, _per_dim(stride, rank, kernel),
            _per_dim(padding, rank), _per_dim(dilation, rank), strict=True,
        )  # fmt: skip
        return _max_backward(graph, grad, a, indices, [_fixed_windows(*p) for p in parameters])

    return lowering


lower(aten.max_pool2d_with_indices_backward.default)(_max_pool_backward(2))
lower(aten.max_pool3d_with_indices_backward.default)(_max_pool_backward(3))


@lower(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def _adaptive_max_pool_backward(graph: Graph, grad: Box, a: Box, indices: Box) -> Box:
    rank = 2 if graph.origin and "2d" in str(graph.origin.target) else 3
    axes = [_adaptive_windows(*p) for p in zip(a.size[-rank:], grad.size[-rank:], strict=True)]
    return _max_backward(graph, grad, a, indices, axes)


# --- average --------------------------------------------------------------------------------------


def _divisor(
    axes: Sequence[PoolingAxis], index: Index, override: int | None, compute: Any
) -> Value:
    if override:
        return ops.constant(override, compute)
    outer = index[len(index) - len(axes) :]
    count = axes[0].divisor(outer[0])
    for axis, o in zip(axes[1:], outer[1:], strict=True):
        count = ops.mul(count, axis.divisor(o))
    return ops.to_dtype(count, compute)


def _quotient(total: Value, count: Value) -> Value:
    return (ops.truediv if total.dtype.is_floating_point else ops.truncdiv)(total, count)


def _average(graph: Graph, a: Box, axes: Sequence[PoolingAxis], override: int | None = None) -> Box:
    size = sizes(_result_meta(graph).shape)
    if 0 in size or 0 in a.size:
        return full(graph, size, 0, a.dtype, a.device)
    count = math.prod(axis.elements for axis in axes)
    if count > MAX_WINDOW:
        if _windows_overlap(graph, axes):
            raise Unsupported("pooling", "large windows that overlap, for which ATen is faster")
        return _large_average(graph, a, axes, override)
    compute = compute_dtype(a.dtype)
    a.realize()

    def inner(index: Index) -> Value:
        total = ops.constant(0, compute)
        for position, inside in _window_elements(axes, index):
            value = _masked(inside, lambda p=position: a.load(p), 0)  # type: ignore[misc]
            total = ops.add(total, value)
        return _quotient(total, _divisor(axes, index, override, compute))

    return loop_ir.pointwise(
        graph, a.device, a.dtype, size, inner, [a], operations=4 * count, expensive=True
    )


def _large_average(graph: Graph, a: Box, axes: Sequence[PoolingAxis], override: int | None) -> Box:
    """The average as a reduction over the window."""
    compute = compute_dtype(a.dtype)
    size = sizes(_result_meta(graph).shape)
    a.realize()
    buffer = graph.new_buffer(a.dtype, a.device, size)

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        position, inside = _element(axes, xs, rs)
        value = _masked(inside, lambda: a.load(position), 0)
        total = ops.reduction("sum", value)
        mean = _quotient(total, _divisor(axes, xs, override, compute))
        ops.store(buffer.name, buffer.address(xs), mean)

    graph.add_loops(size, [sympy.Integer(axis.elements) for axis in axes], loops)
    return graph.box(buffer)


def _average_backward(
    graph: Graph, grad: Box, a: Box, axes: Sequence[PoolingAxis], override: int | None = None
) -> Box:
    if 0 in a.size or 0 in grad.size:
        return full(graph, a.size, 0, a.dtype, a.device)
    compute = compute_dtype(a.dtype)
    grad.realize()

    def share(output: list[Expr], inside: Value | None) -> Value:
        """The share of one output's gradient for an element of its window."""
        value = _masked(inside, lambda: grad.load(output), 0)
        part = ops.truediv(value, _divisor(axes, output, override, compute))
        if inside is not None:  # outside, the divisor may be 0
            part = ops.where(inside, part, ops.constant(0, compute))
        return part

    count = math.prod(axis.max_coverings for axis in axes)
    if count > MAX_WINDOW:
        raise Unsupported("pooling", "gradients of many windows over an element")

    def inner(index: Index) -> Value:
        total = ops.constant(0, compute)
        for output, inside in _covering_outputs(axes, index):
            total = ops.add(total, share(output, inside))
        return total

    return loop_ir.pointwise(
        graph, a.device, a.dtype, a.size, inner, [grad], operations=6 * count, expensive=True
    )


def _average_axes(
    rank: int, size: Sequence[Expr], out: Sequence[Expr], kernel: Any, stride: Any, padding: Any,
    count_include_pad: bool,
) -> list[PoolingAxis]:  # fmt: skip
    kernel = _per_dim(kernel, rank)
    parameters = zip(
        size[-rank:], out[-rank:], kernel, _per_dim(stride, rank, kernel), _per_dim(padding, rank),
        strict=True,
    )  # fmt: skip
    return [_fixed_windows(*p, count_padding=count_include_pad) for p in parameters]


def _avg_pool(rank: int) -> Callable[..., Box]:
    def lowering(
        graph: Graph, a: Box, kernel: Any, stride: Any = (), padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Box:  # fmt: skip
        out = sizes(_result_meta(graph).shape)
        axes = _average_axes(rank, a.size, out, kernel, stride, padding, count_include_pad)
        return _average(graph, a, axes, divisor_override)

    return lowering


def _avg_pool_backward(rank: int) -> Callable[..., Box]:
    def lowering(
        graph: Graph, grad: Box, a: Box, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None,
    ) -> Box:  # fmt: skip
        axes = _average_axes(rank, a.size, grad.size, kernel, stride, padding, count_include_pad)
        return _average_backward(graph, grad, a, axes, divisor_override)

    return lowering


lower(aten.avg_pool2d.default)(_avg_pool(2))
lower(aten.avg_pool3d.default)(_avg_pool(3))
lower(aten.avg_pool2d_backward.default)(_avg_pool_backward(2))
lower(aten.avg_pool3d_backward.default)(_avg_pool_backward(3))


@lower(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(graph: Graph, a: Box, out: Sequence[Any]) -> Box:
    rank = len(out)
    axes = [_adaptive_windows(s, expr(o)) for s, o in zip(a.size[-rank:], out, strict=True)]
    return _average(graph, a, axes)


@lower(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool_backward(graph: Graph, grad: Box, a: Box) -> Box:
    rank = 2 if graph.origin and "2d" in str(graph.origin.target) else 3
    axes = [_adaptive_windows(*p) for p in zip(a.size[-rank:], grad.size[-rank:], strict=True)]
    return _average_backward(graph, grad, a, axes)

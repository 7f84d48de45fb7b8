"""Binary search in sorted tensors, elements placed in the order of a mask, and strided writes."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import flatten, product
from magpy_like.compiler.ir.loop_ir import Box, Index
from magpy_like.compiler.ir.ops import Value, ops
from magpy_like.compiler.lowering.conversions import full, to_dtype
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    aten,
    broadcast_shapes,
    common_device,
    expand,
    lower,
)
from magpy_like.compiler.lowering.scans import cumsum
from magpy_like.compiler.lowering.value_checks import indices
from magpy_like.compiler.lowering.views import reshape


@lower(aten.searchsorted.Tensor)
def searchsorted(
    graph: Graph, sequence: Box, values: Box, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Box | None = None,
) -> Box:  # fmt: skip
    """The number of smaller (``right``: not greater) elements, by bisection."""
    result = torch.int32 if out_int32 else torch.int64
    if not sequence.size or not sequence.size[-1].is_Integer or sequence.dtype != values.dtype:
        raise Unsupported("aten.searchsorted", "a symbolic length, or two dtypes")
    n = int(sequence.size[-1])
    if n == 0 or 0 in values.size:
        return full(graph, values.size, 0, result, values.device)
    from_right = right or side == "right"
    sorter = sorter and indices(graph, sorter, n)
    boxes = [b for b in (sequence, values, sorter) if b is not None]
    common_device(boxes)
    for box in boxes:
        box.realize()

    def inner(index: Index) -> Value:
        lead = list(index[:-1]) if len(sequence.size) > 1 else []
        wanted = values.load(index)
        low, high = (ops.constant(k, torch.int64) for k in (0, n))
        one, last = (ops.constant(k, torch.int64) for k in (1, n - 1))
        for _ in range(n.bit_length()):
            middle = ops.shift_right(ops.add(low, high), one)
            at = [*lead, ops.indirect(ops.minimum(middle, last), n)]
            if sorter is not None:
                at[-1] = ops.indirect(ops.to_dtype(sorter.load(at), torch.int64), n)
            found = sequence.load(at)
            beyond = ops.gt(found, wanted) if from_right else ops.ge(found, wanted)
            active = ops.lt(low, high)
            above = ops.logical_and(active, ops.logical_not(beyond))
            low = ops.where(above, ops.add(middle, one), low)
            high = ops.where(ops.logical_and(active, beyond), middle, high)
        return ops.to_dtype(low, result)

    return loop_ir.pointwise(
        graph, values.device, result, values.size, inner, boxes,
        operations=8 * n.bit_length(), expensive=True,
    )  # fmt: skip


@lower(aten.bucketize.Tensor)
def bucketize(
    graph: Graph, values: Box, boundaries: Box, *, out_int32: bool = False, right: bool = False
) -> Box:
    return searchsorted(graph, boundaries, values, out_int32=out_int32, right=right)


@lower(aten.masked_scatter.default)
def masked_scatter(graph: Graph, a: Box, mask: Box, source: Box) -> Box:
    """Replace the masked elements by those of ``source``, in order."""
    size = broadcast_shapes(a.size, mask.size)
    count = source.numel()
    if 0 in size or count == 0 or mask.dtype != torch.bool or a.dtype != source.dtype:
        raise Unsupported("aten.masked_scatter", "no elements, or another dtype")
    common_device([a, mask, source])
    a, mask = expand(a, size), expand(mask, size)
    chosen = to_dtype(graph, reshape(mask, [product(size)]), torch.int64)
    order: Any = cumsum(graph, chosen, 0)
    values = reshape(source, [count])
    values.realize()

    def inner(index: Index) -> Value:
        here = mask.load(index)
        flat = flatten(list(index), list(size))
        rank = ops.sub(order.load([flat]), ops.constant(1, torch.int64))
        enough = ops.logical_or(
            ops.logical_not(here), ops.lt(rank, ops.index_expr(count, torch.int64))
        )
        ops.check(enough, "Number of elements of source < number of ones in mask", "RuntimeError")
        rank = ops.where(ops.logical_and(here, enough), rank, ops.constant(0, torch.int64))
        return ops.where(here, values.load([ops.indirect(rank, count)]), a.load(index))

    return loop_ir.pointwise(
        graph, a.device, a.dtype, size, inner, [a, mask, order, values], operations=8
    )


@lower(aten.as_strided_scatter.default)
def as_strided_scatter(
    graph: Graph, a: Box, source: Box, size: Any, stride: Any, offset: Any = None
) -> Box:
    """A copy of ``a`` with a window overwritten; the window refers to eager's memory layout."""
    window = a.strided()
    assert graph.origin is not None
    eager = graph.origin.args[0].meta["val"]
    start = 0 if offset is None else offset - eager.storage_offset()
    numbers = [*size, *stride, start, *a.size]
    if window is None or not all(sympy.sympify(n).is_Integer for n in numbers):
        raise Unsupported("aten.as_strided_scatter", "a symbolic window, or one of no memory")
    if 0 in numbers[: len(size)] or 0 in a.size or source.dtype != a.dtype:
        raise Unsupported("aten.as_strided_scatter", "no elements, or another dtype")
    if [sympy.sympify(step) for step in eager.stride()] != window.stride:
        raise Unsupported("aten.as_strided_scatter", "the layout differs from eager's")
    room, gaps = _extent_and_gaps(a.size, window.stride)
    reach, _ = _extent_and_gaps(size, stride)
    if gaps != 0 or window.offset != 0 or not 0 <= start <= room - reach:
        raise Unsupported("aten.as_strided_scatter", "memory that is not the tensor's")
    source.realize()
    copy = graph.box(graph.new_buffer(a.dtype, a.device, a.size, window.stride))
    graph.store_into(a, copy)
    target = loop_ir.Strided(
        copy.realize().buffer, source.size, [sympy.Integer(int(s)) for s in stride],
        sympy.Integer(int(start)),
    )  # fmt: skip
    graph.store_into(source, Box(graph, a.dtype, a.device, source.size, target))
    return copy


def _extent_and_gaps(size: Any, stride: Any) -> tuple[int, int]:
    """(distance from the first element to the last, number of gaps in between)."""
    reach, count = 0, 1
    for step, extent in sorted((int(s), int(n)) for s, n in zip(stride, size, strict=True)):
        if extent == 1:
            continue
        if step <= reach:
            raise Unsupported("aten.as_strided_scatter", "a window that overlaps itself")
        reach += step * (extent - 1)
        count *= extent
    return reach, reach + 1 - count

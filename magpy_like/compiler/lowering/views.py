"""Views: index arithmetic without moving memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box, Index, Strided, View, pointwise
from magpy_like.compiler.ir.ops import ops
from magpy_like.compiler.ir.size_names import expr
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    aten,
    canonical_dim,
    expand,
    lower,
    sizes,
    view_of,
)
from magpy_like.torch_compat.tracing.symbolic_expressions import sympy_functions


@lower(aten.alias.default, aten.detach.default)
def alias(graph: Graph, a: Box) -> Box:
    return view_of(a, a.size, lambda index: index, lambda window: window)


@lower(aten.permute.default)
def permute(graph: Graph, a: Box, dims: Sequence[int]) -> Box:
    order = [canonical_dim(d, len(a.size)) for d in dims]

    def reindex(index: Index) -> Index:
        result: list[Expr] = [sympy.S.Zero] * len(order)
        for position, dim in enumerate(order):
            result[dim] = index[position]
        return result

    def restride(window: Strided) -> Strided:
        return Strided(
            window.buffer,
            [window.size[d] for d in order],
            [window.stride[d] for d in order],
            window.offset,
        )

    return view_of(a, [a.size[d] for d in order], reindex, restride)


@lower(aten.t.default)
def t(graph: Graph, a: Box) -> Box:
    return permute(graph, a, list(range(len(a.size)))[::-1])


@lower(aten.transpose.int)
def transpose(graph: Graph, a: Box, first: int, second: int) -> Box:
    order = list(range(len(a.size)))
    if not order:
        return alias(graph, a)
    i, j = canonical_dim(first, len(order)), canonical_dim(second, len(order))
    order[i], order[j] = order[j], order[i]
    return permute(graph, a, order)


@lower(aten.expand.default)
def expand_(graph: Graph, a: Box, size: Sequence[Any], *, implicit: bool = False) -> Box:
    lead = len(size) - len(a.size)
    full = [a.size[k - lead] if k >= lead and s == -1 else expr(s) for k, s in enumerate(size)]
    return expand(a, full)


def reshape(a: Box, size: Sequence[Expr]) -> Box:
    """The same elements in row-major order, in shape ``size``."""
    size = list(size)
    if size == a.size:
        return view_of(a, size, lambda index: index, lambda window: window)
    if 0 in size:  # no element, hence no index to map
        return pointwise(
            a.graph, a.device, a.dtype, size, lambda index: ops.constant(0, a.dtype), []
        )

    def restride(window: Strided) -> Strided | None:
        stride = index_arithmetic.reshape_strides(window.size, window.stride, size)
        return None if stride is None else Strided(window.buffer, size, stride, window.offset)

    return view_of(a, size, index_arithmetic.reshape_index(a.size, size), restride)


@lower(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(graph: Graph, a: Box, size: Sequence[Any]) -> Box:
    assert graph.origin is not None
    before, after = (node.meta["val"] for node in (graph.origin.args[0], graph.origin))
    size, source, stride = sizes(after.shape), sizes(before.stride()), sizes(after.stride())
    reshaped = reshape(a, size)
    if graph.origin.target is aten.reshape.default or not isinstance(reshaped.data, View):
        return reshaped
    by_sizes = reshaped.data.restride

    def restride(window: Strided) -> Strided | None:
        """ATen's view shares memory even where sizes alone do not show that it can."""
        if (found := by_sizes(window)) is not None or window.stride != source:
            return found
        return Strided(window.buffer, size, stride, window.offset)

    return view_of(a, size, reshaped.data.reindex, restride)


@lower(aten.resize.default)
def resize(graph: Graph, a: Box, size: Sequence[Any], *, memory_format: Any = None) -> Box:
    """A copy with as many elements; otherwise memory would show its old contents."""
    assert graph.origin is not None
    meta = graph.origin.args[0].meta["val"]
    same = sizes(size) == a.size
    if not same and (
        not meta.is_contiguous() or index_arithmetic.product(sizes(size)) != a.numel()
    ):
        raise Unsupported("aten.resize", "another number of elements, or another order")
    copy = pointwise(graph, a.device, a.dtype, a.size, a.load, [a])
    return copy if same else reshape(copy, sizes(size))


@lower(aten.unsqueeze.default)
def unsqueeze(graph: Graph, a: Box, dim: int) -> Box:
    dim = canonical_dim(dim, len(a.size) + 1)
    size = [*a.size[:dim], sympy.S.One, *a.size[dim:]]

    def restride(window: Strided) -> Strided:
        step = window.size[dim] * window.stride[dim] if dim < len(window.size) else sympy.S.One
        stride = [*window.stride[:dim], step, *window.stride[dim:]]
        return Strided(window.buffer, size, stride, window.offset)

    return view_of(a, size, lambda index: [*index[:dim], *index[dim + 1 :]], restride)


@lower(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(graph: Graph, a: Box, dims: Any = None) -> Box:
    rank = len(a.size)
    if dims is None:
        wanted = set(range(rank))
    else:
        wanted = {canonical_dim(d, rank) for d in (dims if isinstance(dims, (list, tuple))
                                                   else [dims])}  # fmt: skip
    kept = [d for d in range(rank) if d not in wanted or a.size[d] != 1]

    def reindex(index: Index) -> Index:
        result: list[Expr] = [sympy.S.Zero] * rank
        for position, dim in enumerate(kept):
            result[dim] = index[position]
        return result

    def restride(window: Strided) -> Strided:
        return Strided(
            window.buffer,
            [window.size[d] for d in kept],
            [window.stride[d] for d in kept],
            window.offset,
        )

    return view_of(a, [a.size[d] for d in kept], reindex, restride)


def slice_box(a: Box, dim: int, start: Expr, step: Expr, length: Expr) -> Box:
    """``length`` elements along ``dim`` from ``start``, every ``step``-th."""
    size = [*a.size[:dim], length, *a.size[dim + 1 :]]

    def reindex(index: Index) -> Index:
        return [*index[:dim], index[dim] * step + start, *index[dim + 1 :]]

    def restride(window: Strided) -> Strided:
        stride = list(window.stride)
        offset = window.offset + start * stride[dim]
        stride[dim] = stride[dim] * step
        return Strided(window.buffer, size, stride, offset)

    return view_of(a, size, reindex, restride)


def slice_start(graph: Graph, size: Expr, start: Any) -> Expr:
    """The start of a slice by Python's rules, for negative and out-of-range values."""
    if start is None:
        return sympy.S.Zero
    v = from_end(graph, expr(start), size)
    if graph.is_known(v >= size):
        return size
    low = v if graph.is_known(v >= 0) else sympy_functions.Max(v, sympy.S.Zero)
    return low if graph.is_known(low <= size) else sympy_functions.Min(low, size)


def from_end(graph: Graph, position: Expr, size: Expr) -> Expr:
    """A position that counts from the end if negative. Raises Unsupported if its sign is
    unknown."""
    if graph.is_known(position >= 0):
        return position
    if graph.is_known(position < 0):
        return position + size
    raise Unsupported("an index", f"the sign of {position} is unknown")


@lower(aten.slice.Tensor)
def slice_(
    graph: Graph, a: Box, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Box:
    assert graph.origin is not None
    if graph.origin.meta.get("unbacked_bindings"):  # torch 2.11; later ones have an expression
        raise Unsupported("aten.slice", "a length known at run time only")
    dim = canonical_dim(dim, len(a.size))
    low = slice_start(graph, a.size[dim], start)
    length = expr(graph.origin.meta["val"].shape[dim])
    return slice_box(a, dim, low, expr(step), length)


@lower(aten.select.int)
def select(graph: Graph, a: Box, dim: int, index: Any) -> Box:
    dim = canonical_dim(dim, len(a.size))
    position = from_end(graph, expr(index), a.size[dim])
    if not graph.is_known(position < a.size[dim]):
        raise Unsupported("aten.select", "an index that may be out of range")
    graph.assume(position >= 0)
    return squeeze(graph, slice_box(a, dim, position, sympy.S.One, sympy.S.One), dim)


@lower(aten.split_with_sizes.default)
def split_with_sizes(graph: Graph, a: Box, lengths: Sequence[Any], dim: int = 0) -> list[Box]:
    dim = canonical_dim(dim, len(a.size))
    pieces, start = [], sympy.S.Zero
    for length in sizes(lengths):
        pieces.append(slice_box(a, dim, start, sympy.S.One, length))
        start = start + length
    return pieces


@lower(aten.split.Tensor)
def split(graph: Graph, a: Box, length: Any, dim: int = 0) -> list[Box]:
    assert graph.origin is not None
    dim = canonical_dim(dim, len(a.size))
    lengths = [v.shape[dim] for v in graph.origin.meta["val"]]
    return split_with_sizes(graph, a, lengths, dim)


@lower(aten.unbind.int)
def unbind(graph: Graph, a: Box, dim: int = 0) -> list[Box]:
    dim = canonical_dim(dim, len(a.size))
    return [select(graph, a, dim, k) for k in range(int(a.size[dim]))]


@lower(aten.unfold.default)
def unfold(graph: Graph, a: Box, dim: int, length: Any, step: Any) -> Box:
    assert graph.origin is not None
    if not a.size:
        a = unsqueeze(graph, a, 0)
        shape = sizes(graph.origin.meta["val"].shape)
        return (
            reshape(a, shape)
            if shape == [1]
            else slice_box(a, 0, sympy.S.Zero, sympy.S.One, shape[0])
        )
    dim = canonical_dim(dim, len(a.size))
    size = sizes(graph.origin.meta["val"].shape)

    def reindex(index: Index) -> Index:
        *rest, last = index
        return [*rest[:dim], rest[dim] * expr(step) + last, *rest[dim + 1 :]]

    def restride(window: Strided) -> Strided:
        stride = [*window.stride, window.stride[dim]]
        stride[dim] = stride[dim] * expr(step)
        return Strided(window.buffer, size, stride, window.offset)

    return view_of(a, size, reindex, restride)


@lower(aten.diagonal.default)
def diagonal(graph: Graph, a: Box, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Box:
    assert graph.origin is not None
    size = sizes(graph.origin.meta["val"].shape)
    first, second = canonical_dim(dim1, len(a.size)), canonical_dim(dim2, len(a.size))
    rest = [d for d in range(len(a.size)) if d not in (first, second)]
    down, right = max(-int(offset), 0), max(int(offset), 0)
    if size[-1] == 0:
        raise Unsupported("aten.diagonal", "no elements")

    def reindex(index: Index) -> Index:
        result: list[Expr] = [sympy.S.Zero] * len(a.size)
        for d, i in zip(rest, index[:-1], strict=True):
            result[d] = i
        result[first], result[second] = index[-1] + down, index[-1] + right
        return result

    def restride(window: Strided) -> Strided:
        step, across = window.stride[first], window.stride[second]
        stride = [*(window.stride[d] for d in rest), step + across]
        return Strided(window.buffer, size, stride, window.offset + down * step + right * across)

    return view_of(a, size, reindex, restride)


@lower(aten.as_strided.default)
def as_strided(
    graph: Graph, a: Box, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> Box:
    """A window on the buffer of ``a``, whose layout must be eager's."""
    window = a.realize()
    assert graph.origin is not None
    source = graph.origin.args[0].meta["val"]
    if [expr(s) for s in source.stride()] != window.stride:
        raise Unsupported("aten.as_strided", "the layout differs from eager's")
    base = source.storage_offset()
    start = window.offset + (sympy.S.Zero if offset is None else expr(offset) - expr(base))
    new = Strided(window.buffer, sizes(size), sizes(stride), start)
    return Box(graph, a.dtype, a.device, sizes(size), new)


@lower(aten.flip.default)
def flip(graph: Graph, a: Box, dims: Sequence[int]) -> Box:
    """A lazy copy in reversed order."""
    turned = {canonical_dim(d, len(a.size)) for d in dims}

    def reindex(index: Index) -> Index:
        return [a.size[d] - 1 - i if d in turned and a.size else i for d, i in enumerate(index)]

    return view_of(a, a.size, reindex, lambda window: None)


@lower(aten.repeat.default)
def repeat(graph: Graph, a: Box, times: Sequence[Any]) -> Box:
    lead = len(times) - len(a.size)
    old = [sympy.S.One] * lead + list(a.size)
    size = [s * n for s, n in zip(old, sizes(times), strict=True)]

    def reindex(index: Index) -> Index:
        return [
            sympy.S.Zero if s == 1 else i if n == 1 else index_arithmetic.Mod(i, s)
            for i, s, n in zip(index[lead:], a.size, sizes(times)[lead:], strict=True)
        ]

    return view_of(a, size, reindex, lambda window: None)

"""Access at computed indices: gather, index, embedding, scatter, index_put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import Expr, contiguous_strides
from magpy_like.compiler.ir.loop_ir import Box, Index
from magpy_like.compiler.ir.ops import LOW_PRECISION, Value, ops, round_number
from magpy_like.compiler.lowering.conversions import clone, full, to_dtype
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    Kind,
    aten,
    broadcast_index,
    broadcast_shapes,
    canonical_dim,
    common_device,
    convert,
    elementwise,
    expand,
    is_number,
    lower,
)
from magpy_like.compiler.lowering.views import reshape, squeeze, unsqueeze
from magpy_like.torch_compat.tracing.fake_tensors import unset_fake_temporarily

_RANGE = "index out of range"
_EMBEDDING = "index out of range in self"
_BOUNDS = "index out of bounds for a dimension of the indexed tensor"


def _check_nonempty(a: Box, dims: Sequence[int]) -> None:
    """Raise Unsupported for indexing an empty dimension: it must raise, and a kernel would read
    elsewhere."""
    if any(a.size[d] == 0 for d in dims):
        raise Unsupported("indexing", "into a dimension of size 0")


@lower(aten.embedding.default)
def embedding(
    graph: Graph, weight: Box, indices: Box, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Box:  # fmt: skip
    _check_nonempty(weight, [0])
    rank = len(indices.size)

    def inner(index: Index) -> Value:
        row = indices.load(index[:rank])
        return weight.load([ops.indirect(row, weight.size[0], _EMBEDDING), *index[rank:]])

    size = [*indices.size, *weight.size[1:]]
    common_device([weight, indices])
    return loop_ir.pointwise(
        graph, weight.device, weight.dtype, size, inner, [weight, indices], operations=6
    )


@lower(aten.index_select.default)
def index_select(graph: Graph, a: Box, dim: int, indices: Box) -> Box:
    if not a.size:
        return squeeze(graph, index_select(graph, unsqueeze(graph, a, 0), 0, indices))
    dim = canonical_dim(dim, len(a.size))
    _check_nonempty(a, [dim])
    count = indices.size[0] if indices.size else sympy.S.One

    def inner(index: Index) -> Value:
        at = indices.load([index[dim]] if indices.size else [])
        j = ops.indirect(at, a.size[dim], _EMBEDDING)
        return a.load([*index[:dim], j, *index[dim + 1 :]])

    size = [*a.size[:dim], count, *a.size[dim + 1 :]]
    return loop_ir.pointwise(graph, a.device, a.dtype, size, inner, [a, indices], operations=6)


@lower(aten.gather.default)
def gather(graph: Graph, a: Box, dim: int, indices: Box, *, sparse_grad: bool = False) -> Box:
    if not a.size or not indices.size:
        a, indices = (b if b.size else unsqueeze(graph, b, 0) for b in (a, indices))
        return squeeze(graph, gather(graph, a, 0, indices))
    dim = canonical_dim(dim, len(a.size))
    _check_nonempty(a, [dim])

    def inner(index: Index) -> Value:
        j = ops.indirect(indices.load(index), a.size[dim], _BOUNDS, "RuntimeError")
        return a.load([*index[:dim], j, *index[dim + 1 :]])

    box = loop_ir.pointwise(
        graph, a.device, a.dtype, indices.size, inner, [a, indices], operations=6
    )
    if indices.size[dim] == 1 and a.strided() is None:
        box.realize()  # one element per row: computed with the row, while it is cached
    return box


def is_known_within(indices: Box, size: Expr) -> bool:
    """True if the indices are compile-time constants within a dimension of ``size``.

    The positions of an interpolation or padding are such constants.
    """
    window = indices.strided()
    graph = indices.graph
    if window is None or graph.attributes.get(window.buffer, "") is not None or not size.is_Integer:
        return False
    with unset_fake_temporarily(), torch.no_grad():
        low, high = graph.constants[window.buffer].aminmax()
        return int(low) >= 0 and int(high) < int(size)


# --- advanced indexing ----------------------------------------------------------------------------


class _IndexPlan:
    """The shape of ``a[indices]``: position of the broadcast index dimensions, and remaining
    dimensions.

    ``error``: exception for an index out of bounds; if set, negative indices are out of bounds too.
    """

    def __init__(self, a: Box, indices: Sequence[Box | None], error: str | None = None) -> None:
        self.a = a
        self.error = error
        self.indexed = [(d, i) for d, i in enumerate(indices) if i is not None]
        if not self.indexed or any(
            i.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8)
            for _, i in self.indexed
        ):
            raise Unsupported("aten.index", "by masks")
        common_device([a, *(i for _, i in self.indexed)])
        _check_nonempty(a, [d for d, _ in self.indexed])
        self.shape = broadcast_shapes(*(i.size for _, i in self.indexed))
        dims = [d for d, _ in self.indexed]
        adjacent = dims == list(range(dims[0], dims[-1] + 1))
        self.insert_dim = dims[0] if adjacent else 0
        self.kept = [d for d in range(len(a.size)) if d not in dims]
        before = [a.size[d] for d in self.kept[: self.insert_dim]]
        after = [a.size[d] for d in self.kept[self.insert_dim :]]
        self.size = [*before, *self.shape, *after]

    def position(self, index: Index) -> list[Expr]:
        """The index into ``a`` of the result's element at ``index``."""
        rank = len(self.shape)
        middle = index[self.insert_dim : self.insert_dim + rank]
        outside = [*index[: self.insert_dim], *index[self.insert_dim + rank :]]
        result: list[Expr] = [sympy.S.Zero] * len(self.a.size)
        for d, i in zip(self.kept, outside, strict=True):
            result[d] = i
        for d, box in self.indexed:
            at = box.load(broadcast_index(box, middle))
            if is_known_within(box, self.a.size[d]):
                result[d] = ops.indirect(at, self.a.size[d])
                continue
            error = self.error or "IndexError"
            result[d] = ops.indirect(at, self.a.size[d], _BOUNDS, error, from_end=not self.error)
        return result


@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_(graph: Graph, a: Box, indices: Sequence[Box | None]) -> Box:
    plan = _IndexPlan(a, indices)
    sources = [a, *(i for _, i in plan.indexed)]
    return loop_ir.pointwise(
        graph, a.device, a.dtype, plan.size, lambda index: a.load(plan.position(index)), sources,
        operations=6,
    )  # fmt: skip


def copy_of(graph: Graph, a: Box) -> Box:
    """New row-major memory with the contents of ``a``, to scatter into."""
    copy = graph.box(graph.new_buffer(a.dtype, a.device, a.size, contiguous_strides(a.size)))
    graph.store_into(a, copy)
    return copy


def scatter_target(graph: Graph, a: Box) -> Box:
    """The memory to scatter into: a copy of ``a``, or ``a`` itself if that is the graph's input to
    write."""
    window = a.strided()
    if window is None or graph.buffers[window.buffer].kind != "input":
        return copy_of(graph, a)
    if graph.origin not in graph.scatters_in_place:
        return copy_of(graph, a)
    if len(graph.buffers_sharing(window.buffer)) > 1:  # indices may be read from it
        return copy_of(graph, a)
    graph.realize_readers(window.buffer)
    graph.mutated_inputs.add(window.buffer)
    return Box(graph, a.dtype, a.device, list(a.size), window)


@lower(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    graph: Graph, a: Box, indices: Sequence[Box | None], values: Box, accumulate: bool = False
) -> Box:
    tensors = [i for i in indices if i is not None]
    if len(tensors) == 1 and tensors[0].dtype == torch.bool:
        return _masked_put(graph, a, indices, values, accumulate)
    return _put(graph, _IndexPlan(a, indices), values, "add" if accumulate else None)


def _put(graph: Graph, plan: _IndexPlan, values: Box, mode: str | None) -> Box:
    """A copy of the plan's tensor with ``values`` stored, in ``mode``, at its indices."""
    a = plan.a
    if mode == "add" and a.dtype == torch.bool:
        raise Unsupported("aten.index_put", "accumulating bools")
    if values.dtype != a.dtype or values.device != a.device:
        raise Unsupported("aten.index_put", "values of another dtype or device")
    values = expand(values, plan.size)
    values.realize()
    result = scatter_target(graph, a)
    window = result.realize()

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        value = values.load(xs)
        address = window.address(plan.position(xs))
        ops.store(window.buffer, address, value, mode)

    graph.add_loops(plan.size, [], loops)
    return result


def _masked_put(
    graph: Graph, a: Box, indices: Sequence[Box | None], values: Box, accumulate: bool
) -> Box:
    """A bool mask with values that do not depend on the masked element's rank: a ``where``."""
    (first,) = (d for d, i in enumerate(indices) if i is not None)
    mask = indices[first]
    assert mask is not None
    rest_start = first + len(mask.size)
    # The dimension that counts masked elements.
    own = len(values.size) - 1 - (len(a.size) - rest_start)
    if own >= 0 and values.size[own] != 1:
        raise Unsupported("aten.index_put", "one value per masked element")
    if values.size and values.dtype != a.dtype:
        raise Unsupported("aten.index_put", "values of another dtype")
    common_device([a, mask, values])

    def inner(index: Index) -> Value:
        row_index = [*index[:first], sympy.S.Zero, *index[rest_start:]]
        new = convert(values.load(broadcast_index(values, row_index)), values.dtype, a.dtype)
        old = a.load(index)
        if accumulate:
            new = (ops.logical_or if a.dtype == torch.bool else ops.add)(old, new)
        return ops.where(mask.load(index[first:rest_start]), new, old)

    return loop_ir.pointwise(
        graph, a.device, a.dtype, a.size, inner, [a, mask, values], operations=3
    )


# --- scatter --------------------------------------------------------------------------------------


def _scatter(
    graph: Graph, a: Box, dim: int, indices: Box, source: Box | Any, mode: str | None,
    error: str = "RuntimeError", *, exact: bool = True,
) -> Box:  # fmt: skip
    """A copy of ``a`` with elements stored, in ``mode``, at indices along one dimension.

    ``error``: exception for an index out of bounds. ``exact``: sums and products of low precision
    are rounded once, at the end.
    """
    if 0 in indices.size:
        return clone(graph, a)
    if isinstance(source, Box) and source.dtype != a.dtype:
        raise Unsupported("scatter", "values of another dtype")
    if exact and mode in ("add", "mul") and _is_summed_in_float32(a):
        if isinstance(source, sympy.Basic):
            raise Unsupported("scatter", "a number that varies, which is rounded")
        if not isinstance(source, Box):
            source = round_number(source, a.dtype)
        wide = to_dtype(graph, a, torch.float32)
        if isinstance(source, Box):
            source = to_dtype(graph, source, torch.float32)
        return to_dtype(graph, _scatter(graph, wide, dim, indices, source, mode, error), a.dtype)
    if not a.size:
        a, indices, source = (
            unsqueeze(graph, b, 0) if isinstance(b, Box) and not b.size else b
            for b in (a, indices, source)
        )
        scattered = _scatter(graph, a, dim, indices, source, mode, error, exact=exact)
        return squeeze(graph, scattered)
    if not indices.size:
        indices = unsqueeze(graph, indices, 0)
        source = unsqueeze(graph, source, 0) if isinstance(source, Box) else source
    dim = canonical_dim(dim, len(a.size))
    _check_nonempty(a, [dim])
    if a.dtype == torch.bool and mode is not None:
        raise Unsupported("scatter", "accumulating bools")
    boxes = [b for b in (a, indices, source) if isinstance(b, Box)]
    common_device(boxes)
    others = [(a.size[d], indices.size[d]) for d in range(len(a.size)) if d != dim]
    one = indices.size[dim] == 1 and all(m == n for m, n in others)
    if one and mode in (None, "add") and a.strided() is None:
        return _scatter_as_select(graph, a, dim, indices, source, mode, error)
    for box in boxes[1:]:
        box.realize()
    result = scatter_target(graph, a)
    window = result.realize()

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        j = ops.indirect(indices.load(xs), a.size[dim], _BOUNDS, error)
        value = source.load(xs) if isinstance(source, Box) else ops.constant(source, a.dtype)
        address = window.address([*xs[:dim], j, *xs[dim + 1 :]])
        ops.store(window.buffer, address, value, mode)

    graph.add_loops(indices.size, [], loops)
    return result


def _is_summed_in_float32(a: Box) -> bool:
    """True if eager's scatters on this device accumulate in a buffer of float32."""
    return a.dtype in LOW_PRECISION and a.device.type == "cpu"


def _scatter_as_select(
    graph: Graph, a: Box, dim: int, indices: Box, source: Box | Any, mode: str | None, error: str
) -> Box:
    """A scatter of one element into each row of a lazy box, as a select for every element of the
    row: a one-hot matrix never reaches memory."""
    small = a.size[dim].is_Integer and a.size[dim] < 2**31
    narrow = torch.int32 if small else torch.int64

    def checked(index: Index) -> Value:
        at = ops.to_dtype(indices.load(index), torch.int64)
        extent = ops.index_expr(a.size[dim], torch.int64)
        within = ops.logical_and(ops.ge(at, ops.constant(0, torch.int64)), ops.lt(at, extent))
        ops.check(within, _BOUNDS, error)
        return ops.to_dtype(at, narrow)

    position = loop_ir.pointwise(graph, a.device, narrow, indices.size, checked, [indices])
    position.realize()  # once per row

    def inner(index: Index) -> Value:
        row = [*index[:dim], sympy.S.Zero, *index[dim + 1 :]]
        old = a.load(index)
        new = source.load(row) if isinstance(source, Box) else ops.constant(source, a.dtype)
        new = ops.add(old, new) if mode == "add" else new
        here = ops.eq(position.load(row), ops.index_expr(index[dim], narrow))
        return ops.where(here, new, old)

    boxes = [b for b in (a, position, source) if isinstance(b, Box)]
    return loop_ir.pointwise(graph, a.device, a.dtype, a.size, inner, boxes, operations=3)


@lower(aten.scatter.src, aten.scatter.value)
def scatter(graph: Graph, a: Box, dim: int, indices: Box, source: Any) -> Box:
    return _scatter(graph, a, dim, indices, source, None)


@lower(aten.scatter_add.default)
def scatter_add(graph: Graph, a: Box, dim: int, indices: Box, source: Box) -> Box:
    return _scatter(graph, a, dim, indices, source, "add")


@lower(aten.index_add.default)
def index_add(graph: Graph, a: Box, dim: int, indices: Box, source: Box, *, alpha: Any = 1) -> Box:
    if source.dtype != a.dtype:
        raise Unsupported("aten.index_add", "another dtype")

    def scale(x: Value) -> Value:
        number = ops.constant(alpha, x.dtype)
        return ops.to_dtype(number, a.dtype) if a.device.type == "cpu" else number

    if alpha != 1:
        source = elementwise(graph, [source], Kind.DEFAULT, lambda x: ops.mul(x, scale(x)))
    rank = len(a.size)
    scatters = rank > 1 and canonical_dim(dim, rank) in (0, rank - 1)  # as eager does
    error = "RuntimeError" if scatters else "IndexError"
    if scatters and alpha == 1 and _is_summed_in_float32(a):
        wide, source = (to_dtype(graph, box, torch.float32) for box in (a, source))
        return to_dtype(graph, _put_rows(graph, wide, dim, indices, source, "add", error), a.dtype)
    return _put_rows(graph, a, dim, indices, source, "add", error)


@lower(aten.index_copy.default)
def index_copy(graph: Graph, a: Box, dim: int, indices: Box, source: Box) -> Box:
    return _put_rows(graph, a, dim, indices, source, None, "IndexError")


def _put_rows(
    graph: Graph, a: Box, dim: int, indices: Box, source: Box, mode: str | None, error: str
) -> Box:
    """A copy of ``a`` with the slices of ``source`` along one dimension stored at indices."""
    if not a.size:
        a = unsqueeze(graph, a, 0)
        return squeeze(graph, _put_rows(graph, a, 0, indices, source, mode, error))
    if not indices.size:
        indices = unsqueeze(graph, indices, 0)
    if not source.size:
        source = unsqueeze(graph, source, 0)
    tensors: list[Box | None] = [None] * len(a.size)
    tensors[canonical_dim(dim, len(a.size))] = indices
    return _put(graph, _IndexPlan(a, tensors, error), source, mode)


# ATen's name of a reduction -> store mode
_MODES = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul",
          "amax": "max", "amin": "min"}  # fmt: skip


def _neutral_value(mode: str, dtype: torch.dtype) -> Any:
    """The neutral value of a store mode."""
    if mode in ("add", "mul"):
        return 0 if mode == "add" else 1
    if mode == "max":
        return lowest_value(dtype)
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def lowest_value(dtype: torch.dtype) -> Any:
    """The smallest value of a dtype."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


@lower(aten.scatter_reduce.two)
def scatter_reduce(
    graph: Graph, a: Box, dim: int, indices: Box, source: Box, reduce: str, *,
    include_self: bool = True,
) -> Box:  # fmt: skip
    return _scatter_reduce(graph, a, dim, indices, source, reduce, include_self, "RuntimeError")


def _scatter_reduce(
    graph: Graph, a: Box, dim: int, indices: Box, source: Box, reduce: str, include_self: bool,
    error: str, *, exact: bool = True,
) -> Box:  # fmt: skip
    mode = _MODES[reduce]
    if a.dtype == torch.bool or a.device.type != "cpu":
        raise Unsupported("aten.scatter_reduce", "bools, or another device")
    base = a
    if not include_self and 0 not in indices.size:
        base = _scatter(graph, a, dim, indices, _neutral_value(mode, a.dtype), None, error)
    result = _scatter(graph, base, dim, indices, source, mode, error, exact=exact)
    if reduce != "mean" or 0 in indices.size:
        return result
    ones = full(graph, indices.size, 1, a.dtype, a.device)
    first = full(graph, a.size, 1 if include_self else 0, a.dtype, a.device)
    count = _scatter(graph, first, dim, indices, ones, "add", exact=exact)

    def divide(total: Value, n: Value) -> Value:
        n = ops.maximum(n, ops.constant(1, n.dtype))
        name = "truediv" if total.dtype.is_floating_point else "floordiv"
        return getattr(ops, name)(total, n)

    return elementwise(graph, [result, count], Kind.DEFAULT, divide, operations=3)


@lower(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with_mode(
    graph: Graph, a: Box, dim: int, indices: Box, source: Any, *, reduce: str
) -> Box:
    if a.device.type != "cpu":
        raise Unsupported("aten.scatter", "another device")
    return _scatter(graph, a, dim, indices, source, _MODES[reduce])


@lower(aten.index_reduce.default)
def index_reduce(
    graph: Graph, a: Box, dim: int, indices: Box, source: Box, reduce: str, *,
    include_self: bool = True,
) -> Box:  # fmt: skip
    if not a.size:
        a, source = (b if b.size else unsqueeze(graph, b, 0) for b in (a, source))
        whole = index_reduce(graph, a, 0, indices, source, reduce, include_self=include_self)
        return squeeze(graph, whole)
    if not indices.size:
        indices = unsqueeze(graph, indices, 0)
    if len(source.size) != len(a.size):
        raise Unsupported("aten.index_reduce", "a source of fewer dimensions")
    dim = canonical_dim(dim, len(a.size))
    shape = [indices.size[0] if d == dim else sympy.S.One for d in range(len(a.size))]
    spread = expand(reshape(indices, shape), source.size)
    return _scatter_reduce(
        graph, a, dim, spread, source, reduce, include_self, "IndexError", exact=False
    )  # eager rounds at every step


@lower(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    graph: Graph, grad: Box, indices: Box, num_weights: Any, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Box:  # fmt: skip
    """Rows of ``grad`` summed by index, without the rows of the padding index."""
    if scale_grad_by_freq or not is_number(num_weights):
        raise Unsupported("aten.embedding_dense_backward", "scaled by frequency")
    rank = len(indices.size)
    size = [sympy.sympify(num_weights), *grad.size[rank:]]
    if 0 in size or 0 in grad.size:
        raise Unsupported("aten.embedding_dense_backward", "no elements")
    wide = to_dtype(graph, grad, torch.float32) if grad.dtype.itemsize == 2 else grad
    wide.realize()
    indices.realize()
    zero = full(graph, size, 0, wide.dtype, grad.device)
    result = copy_of(graph, zero)
    window = result.realize()

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        row = ops.to_dtype(indices.load(xs[:rank]), torch.int64)
        value = wide.load(xs)
        padding = ops.eq(row, ops.constant(int(padding_idx), torch.int64))
        value = ops.where(padding, ops.constant(0, value.dtype), value)
        address = window.address([ops.indirect(row, size[0], _RANGE), *xs[rank:]])
        ops.store(window.buffer, address, value, "add")

    graph.add_loops(grad.size, [], loops)
    return result if wide is grad else to_dtype(graph, result, grad.dtype)

"""Reductions over dimensions: sums, extrema, variance, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import index_arithmetic, loop_ir
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import Value, compute_dtype, ops
from magpy_like.compiler.lowering.conversions import full, to_dtype
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    Kind,
    aten,
    canonical_dim,
    convert,
    convert_first,
    elementwise,
    lower,
)
from magpy_like.compiler.lowering.views import squeeze, unsqueeze

#: Elements that a core's first-level cache holds.
MAX_CACHED_ELEMENTS = 8192
#: Elements of a row, below which Welford's recurrence has too much overhead per row.
MAX_SHORT_ROW = 64
#: Columns that are reduced together where memory runs across the reduction.
COLUMNS_PER_TILE = 256


def reduced_dims(a: Box, dims: Any) -> list[int]:
    """Canonical reduction dimensions; None or an empty list means all."""
    rank = len(a.size)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    listed = dims if isinstance(dims, (list, tuple)) else [dims]
    return sorted({canonical_dim(d, rank) for d in listed} & set(range(rank)))


def reduce(
    graph: Graph,
    a: Box,
    dims: Sequence[int],
    keepdim: bool,
    dtypes: Sequence[torch.dtype],
    function: Callable[[Value, Expr], Sequence[Value]],
) -> list[Box]:
    """Reduce ``a`` over ``dims`` in one loop nest, storing one buffer per dtype.

    ``function(value, flat)`` receives an element and its flat index within ``dims``, calls
    ``ops.reduction`` and returns the values to store.
    """
    size = [s for d, s in enumerate(a.size) if d not in dims]
    buffers = [graph.new_buffer(dtype, a.device, size) for dtype in dtypes]
    # Loops in the order of memory, by the strides of the input.
    stride = (a.strided() or _hint_window(a)).stride
    kept = [d for d in range(len(a.size)) if d not in dims]
    inner_order = graph.stride_order([stride[d] for d in dims], [a.size[d] for d in dims])
    order = [dims[k] for k in inner_order]
    outer_order = graph.stride_order([stride[d] for d in kept], [a.size[d] for d in kept])
    outer = [kept[k] for k in outer_order]

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        index: list[Expr] = [sympy.S.Zero] * len(a.size)
        for d, i in [*zip(outer, xs, strict=True), *zip(order, rs, strict=True)]:
            index[d] = i
        flat = index_arithmetic.flatten([index[d] for d in dims], [a.size[d] for d in dims])
        results = function(a.load(index), flat)
        position = [index[d] for d in kept]
        for buffer, result in zip(buffers, results, strict=True):
            if result.dtype != compute_dtype(buffer.dtype):
                result = ops.to_dtype(result, buffer.dtype)
            ops.store(buffer.name, buffer.address(position), result)

    graph.add_loops([a.size[d] for d in outer], [a.size[d] for d in order], loops)
    boxes = [graph.box(b) for b in buffers]
    return [_keep_dims(graph, box, dims) for box in boxes] if keepdim else boxes


def _hint_window(a: Box) -> loop_ir.Strided:
    stride = a.stride_hint or index_arithmetic.contiguous_strides(a.size)
    return loop_ir.Strided("", a.size, stride, sympy.S.Zero)


def _keep_dims(graph: Graph, box: Box, dims: Sequence[int]) -> Box:
    for d in sorted(dims):
        box = unsqueeze(graph, box, d)
    return box


def _is_empty(a: Box, dims: Sequence[int]) -> bool:
    return any(a.size[d] == 0 for d in dims)


def _check_not_empty(graph: Graph, kind: str, a: Box, dims: Sequence[int]) -> None:
    """Check that an extremum is over some elements.

    Raises:
        Unsupported: there are none, which eager refuses at every call.
    """
    if _is_empty(a, dims):
        raise Unsupported(kind, "over no elements")
    for d in dims:
        graph.assume(sympy.Ge(a.size[d], 1))


def _simple(
    graph: Graph, a: Box, kind: str, dims: Any, keepdim: bool, compute: torch.dtype,
    result: torch.dtype, identity: Any,
) -> Box:  # fmt: skip
    axes = reduced_dims(a, dims)
    size = [s for d, s in enumerate(a.size) if d not in axes]
    if identity is None:
        _check_not_empty(graph, kind, a, axes)
    if _is_empty(a, axes):
        box = full(graph, size, identity, result, a.device)
        return _keep_dims(graph, box, axes) if keepdim else box

    def function(value: Value, flat: Expr) -> Sequence[Value]:
        if compute == torch.bool and value.dtype != torch.bool:
            value = ops.ne(value, ops.constant(0, value.dtype))
        return [ops.reduction(kind, convert_first(value, a.dtype, compute))]

    return reduce(graph, a, axes, keepdim, [result], function)[0]


def _sum_dtype(a: Box, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        return dtype
    return a.dtype if a.dtype.is_floating_point else torch.int64


@lower(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    graph: Graph, a: Box, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Box:
    result = _sum_dtype(a, dtype)
    if result not in loop_ir.LOOP_DTYPES:
        raise Unsupported("aten.sum", f"to {result}")
    return _simple(graph, a, "sum", dims, keepdim, result, result, 0)


@lower(aten.mean.default, aten.mean.dim)
def mean(
    graph: Graph, a: Box, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Box:
    result = dtype or a.dtype
    if not result.is_floating_point:
        raise Unsupported("aten.mean", "of integers")
    axes = reduced_dims(a, dims)
    if _is_empty(a, axes):
        size = [s for d, s in enumerate(a.size) if d not in axes]
        box = full(graph, size, float("nan"), result, a.device)
        return _keep_dims(graph, box, axes) if keepdim else box
    count = index_arithmetic.product(a.size[d] for d in axes)

    def function(value: Value, flat: Expr) -> Sequence[Value]:
        total = ops.reduction("sum", convert(value, a.dtype, result))
        return [ops.truediv(total, ops.constant(count, total.dtype))]

    return reduce(graph, a, axes, keepdim, [result], function)[0]


@lower(aten.prod.default)
def prod(graph: Graph, a: Box, *, dtype: Any = None) -> Box:
    result = _sum_dtype(a, dtype)
    return _simple(graph, a, "prod", None, False, result, result, 1)


@lower(aten.prod.dim_int)
def prod_dim(graph: Graph, a: Box, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Box:
    result = _sum_dtype(a, dtype)
    return _simple(graph, a, "prod", dim, keepdim, result, result, 1)


@lower(aten.amax.default)
def amax(graph: Graph, a: Box, dims: Any = (), keepdim: bool = False) -> Box:
    return _simple(graph, a, "max", dims, keepdim, a.dtype, a.dtype, None)


@lower(aten.amin.default)
def amin(graph: Graph, a: Box, dims: Any = (), keepdim: bool = False) -> Box:
    return _simple(graph, a, "min", dims, keepdim, a.dtype, a.dtype, None)


@lower(aten.max.default)
def max_(graph: Graph, a: Box) -> Box:
    return amax(graph, a)


@lower(aten.min.default)
def min_(graph: Graph, a: Box) -> Box:
    return amin(graph, a)


@lower(aten.any.default, aten.any.dim, aten.any.dims)
def any_(graph: Graph, a: Box, dims: Any = None, keepdim: bool = False) -> Box:
    result = torch.uint8 if a.dtype == torch.uint8 else torch.bool
    return _simple(graph, a, "any", dims, keepdim, torch.bool, result, False)


@lower(aten.all.default, aten.all.dim, aten.all.dims)
def all_(graph: Graph, a: Box, dims: Any = None, keepdim: bool = False) -> Box:
    """True where no element is zero."""
    axes = reduced_dims(a, dims)
    result = torch.uint8 if a.dtype == torch.uint8 else torch.bool
    if _is_empty(a, axes):
        kept = [s for d, s in enumerate(a.size) if d not in axes]
        empty = full(graph, kept, True, result, a.device)
        return _keep_dims(graph, empty, axes) if keepdim else empty

    def function(value: Value, flat: Expr) -> Sequence[Value]:
        zero = ops.eq(value, ops.constant(0, value.dtype))
        return [ops.logical_not(ops.reduction("any", zero))]

    return reduce(graph, a, axes, keepdim, [result], function)[0]


def _arg_reduction(kind: str) -> Callable[..., Any]:
    def lowering(graph: Graph, a: Box, dim: Any = None, keepdim: bool = False) -> Box:
        axes = reduced_dims(a, dim)
        _check_not_empty(graph, kind, a, axes)

        def function(value: Value, flat: Expr) -> Sequence[Value]:
            return [ops.reduction(kind, value, ops.index_expr(flat, torch.int64))]

        return reduce(graph, a, axes, keepdim, [torch.int64], function)[0]

    return lowering


argmax = lower(aten.argmax.default)(_arg_reduction("argmax"))
argmin = lower(aten.argmin.default)(_arg_reduction("argmin"))


def _value_and_index(kind: str) -> Callable[..., Any]:
    def lowering(graph: Graph, a: Box, dim: int, keepdim: bool = False) -> list[Box]:
        axes = reduced_dims(a, dim)
        _check_not_empty(graph, kind, a, axes)

        def function(value: Value, flat: Expr) -> Sequence[Value]:
            extreme = ops.reduction(kind, value)
            where = ops.reduction(f"arg{kind}", value, ops.index_expr(flat, torch.int64))
            return [extreme, where]

        return reduce(graph, a, axes, keepdim, [a.dtype, torch.int64], function)

    return lowering


max_dim = lower(aten.max.dim)(_value_and_index("max"))
min_dim = lower(aten.min.dim)(_value_and_index("min"))


def _fits_cache(graph: Graph, a: Box, axes: Sequence[int]) -> bool:
    """True if the elements that one outer iteration reduces fit a core's first-level cache."""
    stride = (a.strided() or _hint_window(a)).stride
    along = any(stride[d] == 1 for d in axes)
    elements = graph.hint(index_arithmetic.product(a.size[d] for d in axes))
    return elements * (1 if along else COLUMNS_PER_TILE) <= MAX_CACHED_ELEMENTS


@dataclass(frozen=True)
class _Moments:
    """The computation of :func:`variance`."""

    graph: Graph
    a: Box
    axes: Sequence[int]
    keepdim: bool
    dtype: torch.dtype
    correction: Any
    want: str

    @property
    def _count(self) -> Expr:
        return index_arithmetic.product(self.a.size[d] for d in self.axes)

    @property
    def _normalises(self) -> bool:
        """True for the arguments of a normalisation, which accumulates in float32."""
        return self.keepdim and self.correction == 0 and self.want == "vm"

    def compute(self) -> list[Box]:
        a = self.a
        wide = to_dtype(self.graph, a, compute_dtype(self.dtype))
        twice = a.device.type == "cpu" and _fits_cache(self.graph, a, self.axes)
        if twice and not self._normalises and self.dtype in (torch.float32, torch.bfloat16):
            # For longer rows, a test of the sum costs less than float64 throughout.
            twice = self.graph.hint(self._count) < MAX_SHORT_ROW
            wide = to_dtype(self.graph, wide, torch.float64) if twice else wide
        return self._in_two_passes(wide) if twice else self._in_one_pass(wide)

    def _in_one_pass(self, wide: Box) -> list[Box]:
        def function(value: Value, flat: Expr) -> Sequence[Value]:
            on_cpu = self.a.device.type == "cpu"
            exact = torch.float64 if on_cpu and not self._normalises else value.dtype
            mean_, m2, _ = ops.reduction("welford", value, dtype=exact)
            v, s = self._spread(m2)
            mean_ = self._lose_mean(mean_, value, flat)
            return [{"v": v, "s": s, "m": mean_}[w] for w in self.want]

        dtypes = [self.dtype] * len(self.want)
        return reduce(self.graph, wide, self.axes, self.keepdim, dtypes, function)

    def _in_two_passes(self, wide: Box) -> list[Box]:
        graph, want = self.graph, self.want

        def average(value: Value, flat: Expr) -> Sequence[Value]:
            # Beyond float32's range, NaN of eager's float32 moments depends on the row's length.
            total = ops.reduction("sum", value)
            mean_ = ops.truediv(total, ops.constant(self._count, total.dtype))
            return [self._lose_mean(mean_, value, flat)]

        (center,) = reduce(graph, wide, self.axes, True, [wide.dtype], average)
        shifted = elementwise(graph, [wide, center], Kind.DEFAULT, lambda x, m: ops.sub(x, m))

        def squares(value: Value, flat: Expr) -> Sequence[Value]:
            v, s = self._spread(ops.reduction("sum", ops.mul(value, value)))
            spread = [{"v": v, "s": s}[w] for w in want if w != "m"]
            return [*spread, self._error_of_mean(value)] if self._normalises else spread

        dtypes = [self.dtype] * (len(want) - ("m" in want))
        dtypes += [center.dtype] * self._normalises
        results = reduce(graph, shifted, self.axes, self.keepdim, dtypes, squares)
        if self._normalises:
            parts = [center, results.pop()]
            center = elementwise(graph, parts, Kind.DEFAULT, lambda m, e: ops.add(m, e))
        if "m" in want:
            mean_box = to_dtype(graph, center, self.dtype)
            if not self.keepdim:
                mean_box = squeeze(graph, mean_box, list(self.axes))
            results.insert(want.index("m"), mean_box)
        return results

    def _error_of_mean(self, difference: Value) -> Value:
        """The rounding error of a row's mean: the mean of the elements' differences from it.

        A normalisation divides it by the root of a small epsilon where the elements are equal. In
        eager's recurrence it is 0 there. An infinite mean has none: the differences are NaN.
        """
        total = ops.reduction("sum", difference)
        error = ops.truediv(total, ops.constant(self._count, total.dtype))
        return ops.where(ops.eq(error, error), error, ops.constant(0, error.dtype))

    def _spread(self, m2: Value) -> tuple[Value, Value]:
        """(variance, standard deviation) of a sum of squared differences."""
        count = ops.constant(self._count, m2.dtype)
        divisor = ops.sub(count, ops.constant(float(self.correction), m2.dtype))
        result = ops.truediv(m2, ops.maximum(divisor, ops.constant(0, m2.dtype)))
        return result, ops.sqrt(result)

    def _lose_mean(self, mean_: Value, value: Value, flat: Expr) -> Value:
        """NaN as the mean where an element follows an infinite one, as in eager's recurrence."""
        if "m" not in self.want or self._normalises or not self.axes:
            return mean_
        at, last = (ops.index_expr(i, torch.int64) for i in (flat, self._count - 1))
        zero = ops.constant(0, value.dtype)
        lost = ops.where(ops.eq(at, last), zero, ops.mul(value, zero))
        return ops.add(mean_, ops.to_dtype(ops.reduction("sum", lost), mean_.dtype))


def variance(
    graph: Graph, a: Box, axes: Sequence[int], keepdim: bool, dtype: torch.dtype, correction: Any,
    *, want: str,
) -> list[Box]:  # fmt: skip
    """Variance ("v"), standard deviation ("s") and mean ("m"), in the order of ``want``.

    On a CPU, rows that fit the cache are reduced twice, in one kernel; others once, by Welford's
    recurrence. As in eager, float64 holds the sum of squares of float32, which may exceed float32's
    range; but normalisations (variance and mean with these arguments) accumulate in float32.
    """
    return _Moments(graph, a, axes, keepdim, dtype, correction, want).compute()


def _variance(want: str) -> Callable[..., Any]:
    def lowering(
        graph: Graph, a: Box, dims: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        axes = reduced_dims(a, dims)
        if not a.dtype.is_floating_point:
            raise Unsupported("variance", "of integers")
        if _is_empty(a, axes):
            size = [s for d, s in enumerate(a.size) if d not in axes]
            nothing = full(graph, size, float("nan"), a.dtype, a.device)
            results = [_keep_dims(graph, nothing, axes) if keepdim else nothing for _ in want]
            return results if len(want) > 1 else results[0]
        results = variance(
            graph, a, axes, keepdim, a.dtype, 1 if correction is None else correction, want=want
        )
        return results if len(want) > 1 else results[0]

    return lowering


var = lower(aten.var.correction)(_variance("v"))
std = lower(aten.std.correction)(_variance("s"))
var_mean = lower(aten.var_mean.correction)(_variance("vm"))
std_mean = lower(aten.std_mean.correction)(_variance("sm"))


def _softmax(log: bool) -> Callable[..., Any]:
    def lowering(graph: Graph, a: Box, dim: int, half_to_float: bool) -> Box:
        if half_to_float or not a.dtype.is_floating_point:
            raise Unsupported("softmax", "half to float on CPU")
        axes = reduced_dims(a, dim)
        if not axes or _is_empty(a, axes) or 0 in a.size:
            raise Unsupported("softmax", "over no elements")
        wide = to_dtype(graph, a, compute_dtype(a.dtype))
        if wide.cost().is_expensive:
            wide.realize()  # also kept in a scratch row: all phases read it
        # A NaN reaches the row through the sum, so the maximum may ignore it.
        largest = _simple(graph, wide, "fmax", axes, True, wide.dtype, wide.dtype, None)
        shifted = elementwise(graph, [wide, largest], Kind.DEFAULT, lambda x, m: ops.sub(x, m))
        powers = elementwise(
            graph, [shifted], Kind.DEFAULT,
            lambda x: ops.exp_addend(x) if log else ops.exp_nonpositive(x), expensive=True,
        )  # fmt: skip
        if log:
            (total,) = reduce(
                graph, powers, axes, True, [wide.dtype],
                lambda value, flat: [ops.log(ops.reduction("sum", value))],
            )  # fmt: skip
            result = elementwise(graph, [shifted, total], Kind.DEFAULT, lambda x, s: ops.sub(x, s))
        else:
            powers.stride_hint = a.stride_hint
            powers.realize()  # kept in a scratch row between the last two phases
            # The sum is between 1 and the number of elements, so multiplying by its reciprocal is
            # as accurate as dividing, and several times as fast.
            (share,) = reduce(
                graph, powers, axes, True, [wide.dtype],
                lambda value, flat: [ops.reciprocal(ops.reduction("sum", value))],
            )  # fmt: skip
            result = elementwise(graph, [powers, share], Kind.DEFAULT, lambda x, s: ops.mul(x, s))
        return to_dtype(graph, result, a.dtype) if wide.dtype != a.dtype else result

    return lowering


def _safe_softmax(graph: Graph, a: Box, dim: int, dtype: Any = None) -> Box:
    """Softmax that yields zeros for a row of only -inf."""
    if dtype not in (None, a.dtype) or 0 in a.size or not a.size:
        raise Unsupported("aten._safe_softmax", "conversion, or no elements")
    axes = reduced_dims(a, dim)
    a.realize()
    dead = reduce(
        graph, a, axes, True, [torch.bool],
        lambda value, flat: [
            ops.eq(ops.reduction("max", value), ops.constant(float("-inf"), value.dtype))
        ],
    )[0]  # fmt: skip
    result = softmax(graph, a, dim, False)
    return elementwise(
        graph, [dead, result], Kind.DEFAULT,
        lambda d, x: ops.where(ops.ne(d, ops.constant(0, d.dtype)), ops.constant(0, x.dtype), x),
    )  # fmt: skip


softmax = lower(aten._softmax.default)(_softmax(log=False))
log_softmax = lower(aten._log_softmax.default)(_softmax(log=True))
lower(aten._safe_softmax.default)(_safe_softmax)

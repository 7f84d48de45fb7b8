"""Conversions, copies and constant tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import Value, ops
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import aten, expand, is_number, lower, sizes

prims = torch.ops.prims


def to_dtype(graph: Graph, a: Box, dtype: torch.dtype) -> Box:
    """A converted copy; conversion to a low precision dtype rounds, as in eager."""

    def inner(index: Any) -> Value:
        value = a.load(index)
        return value if a.dtype == dtype else ops.to_dtype(value, dtype)

    if dtype not in loop_ir.LOOP_DTYPES:
        raise Unsupported("conversion", f"to {dtype}")
    return loop_ir.pointwise(graph, a.device, dtype, a.size, inner, [a])


@lower(prims.convert_element_type.default)
def convert_element_type(graph: Graph, a: Box, dtype: torch.dtype) -> Box:
    return to_dtype(graph, a, dtype)


@lower(aten._to_copy.default)
def _to_copy(
    graph: Graph, a: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, non_blocking: bool = False, memory_format: Any = None,
) -> Box:  # fmt: skip
    if is_number(a):  # vmap traces conversions of numbers that meet its tensors
        return scalar_tensor(graph, a)
    if device is not None and torch.device(device) != a.device:
        raise Unsupported("aten._to_copy", "moves between devices")
    if pin_memory:
        raise Unsupported("aten._to_copy", "pinned memory")
    return to_dtype(graph, a, dtype or a.dtype)


@lower(aten.clone.default, aten.lift_fresh_copy.default)
def clone(graph: Graph, a: Box, *, memory_format: Any = None) -> Box:
    return to_dtype(graph, a, a.dtype)


@lower(prims.copy_strided.default)
def copy_strided(graph: Graph, a: Box, stride: Sequence[Any]) -> Box:
    """The strides are those of the fake result."""
    return to_dtype(graph, a, a.dtype)


@lower(aten.copy.default)
def copy(graph: Graph, target: Box, source: Box, non_blocking: bool = False) -> Box:
    if source.device != target.device:
        raise Unsupported("aten.copy", "moves between devices")
    return to_dtype(graph, expand(source, target.size), target.dtype)


@lower(aten.copy_.default)
def copy_(graph: Graph, target: Box, source: Box, non_blocking: bool = False) -> Box:
    """Update an input of the graph; values that depend on its old contents are stored first."""
    window = target.strided()
    if window is None or source.device != target.device:
        raise Unsupported("aten.copy_", "to something computed, or to another device")
    if source.strided() is window:
        return target  # a scatter in place
    graph.realize_readers(window.buffer)
    new = to_dtype(graph, expand(source, target.size), target.dtype)
    if not graph.buffers_sharing(window.buffer).isdisjoint(source.cost().reads):
        new.stride_hint = source.stride_hint
        new.realize()  # the scheduler fuses both steps if each element reads only itself
    graph.store_into(new, target)
    graph.mutated_inputs.add(window.buffer)
    return target


def full(graph: Graph, size: Any, value: Any, dtype: torch.dtype, device: torch.device) -> Box:
    """A tensor of one number."""
    if dtype not in loop_ir.LOOP_DTYPES:
        raise Unsupported("a constant", f"dtype {dtype}")
    if isinstance(value, sympy.Basic) and not value.is_integer:
        raise Unsupported("a constant", "a symbolic float")
    return loop_ir.pointwise(
        graph, device, dtype, sizes(size), lambda index: ops.constant(value, dtype), []
    )


def _result(graph: Graph) -> torch.Tensor:
    assert graph.origin is not None
    return graph.origin.meta["val"]


@lower(
    aten.full.default, aten.full_like.default, aten.new_full.default, prims.full.default
)  # fmt: skip
def full_(graph: Graph, like: Any, *args: Any, **kwargs: Any) -> Box:
    meta = _result(graph)
    is_new_full = graph.origin is not None and graph.origin.target is aten.new_full.default
    value = args[1] if is_new_full else args[0]
    if isinstance(value, Box):
        raise Unsupported("aten.full", "fill value in a tensor")
    return full(graph, meta.shape, value, meta.dtype, meta.device)


@lower(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default,
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default,
    aten.empty_strided.default, aten.new_empty_strided.default, aten.empty_permuted.default,
    aten._efficientzerotensor.default,
)  # fmt: skip
def zeros(graph: Graph, *args: Any, **kwargs: Any) -> Box:
    """Zeros. Uninitialised tensors are zeros too, which then need no memory."""
    meta = _result(graph)
    return full(graph, meta.shape, 0, meta.dtype, meta.device)


@lower(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(graph: Graph, *args: Any, **kwargs: Any) -> Box:
    meta = _result(graph)
    return full(graph, meta.shape, 1, meta.dtype, meta.device)


@lower(aten.scalar_tensor.default)
def scalar_tensor(graph: Graph, value: Any, **kwargs: Any) -> Box:
    meta = _result(graph)
    return full(graph, [], value, meta.dtype, meta.device)


@lower(prims.iota.default)
def iota(
    graph: Graph, length: Any, *, start: Any, step: Any, dtype: torch.dtype,
    device: torch.device, requires_grad: bool,
) -> Box:  # fmt: skip
    if dtype.is_floating_point:
        raise Unsupported("prims.iota", "floating point")

    def inner(index: Any) -> Value:
        return ops.index_expr(index[0] * step + start, dtype)

    meta = _result(graph)
    return loop_ir.pointwise(graph, meta.device, dtype, sizes([length]), inner, [])


@lower(aten.arange.start_step)
def arange(graph: Graph, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Box:
    meta = _result(graph)
    if not meta.dtype.is_floating_point and any(isinstance(v, float) for v in (start, end, step)):
        raise Unsupported("aten.arange", "integers from floats")

    def inner(index: Any) -> Value:
        if not meta.dtype.is_floating_point:
            return ops.index_expr(index[0] * step + start, meta.dtype)
        position = ops.index_expr(index[0], torch.float64)
        first, distance = (ops.constant(v, torch.float64) for v in (start, step))
        return ops.to_dtype(ops.add(first, ops.mul(position, distance)), meta.dtype)

    return loop_ir.pointwise(graph, meta.device, meta.dtype, sizes(meta.shape), inner, [])

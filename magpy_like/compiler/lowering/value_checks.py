"""Operators that check the range of values before another operator uses them.

Each returns a copy of its argument, and raises for a value out of range.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.loop_ir import Box, Index
from magpy_like.compiler.ir.ops import Value, ops
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import lower
from magpy_like.graph_operators.operator_registration import define_operator

_OUTSIDE = "index out of bounds"
_NO_PROBABILITY = "all elements of {} should be between 0 and 1"


def _indices(a: Tensor, count: int, besides: int = 0) -> Tensor:
    """A copy of indices.

    Raises:
        IndexError: an element is neither in [0, count) nor equal to ``besides``.
    """
    valid = (a == besides) | ((a >= 0) & (a < count))
    if not valid.all():
        raise IndexError(_OUTSIDE)
    return a.clone()


def _probabilities(a: Tensor, what: str) -> Tensor:
    """A copy of probabilities.

    Raises:
        RuntimeError: an element is not in [0, 1]; the message names ``what``.
    """
    if not ((a >= 0) & (a <= 1)).all():
        raise RuntimeError(_NO_PROBABILITY.format(what))
    return a.clone()


def _copy(a: Tensor, *_: Any) -> Tensor:
    return a.clone()


INDICES = define_operator(
    "indices(Tensor a, SymInt count, int besides=0) -> Tensor", _indices, _copy
)
PROBABILITIES = define_operator(
    "probabilities(Tensor a, str what) -> Tensor", _probabilities, _copy
)


@lower(INDICES)
def indices(graph: Graph, a: Box, count: Any, besides: int = 0) -> Box:
    def inner(index: Index) -> Value:
        at = ops.to_dtype(a.load(index), torch.int64)
        zero, extent = ops.constant(0, torch.int64), ops.index_expr(count, torch.int64)
        valid = ops.logical_and(ops.ge(at, zero), ops.lt(at, extent))
        ops.check(ops.logical_or(valid, ops.eq(at, ops.constant(besides, at.dtype))), _OUTSIDE)
        return ops.to_dtype(at, a.dtype)

    return loop_ir.pointwise(graph, a.device, a.dtype, a.size, inner, [a])


@lower(PROBABILITIES)
def probabilities(graph: Graph, a: Box, what: str) -> Box:
    def inner(index: Index) -> Value:
        x = a.load(index)
        zero, one = ops.constant(0, x.dtype), ops.constant(1, x.dtype)
        within = ops.logical_and(ops.ge(x, zero), ops.le(x, one))
        ops.check(within, _NO_PROBABILITY.format(what), "RuntimeError")
        return x

    return loop_ir.pointwise(graph, a.device, a.dtype, a.size, inner, [a])

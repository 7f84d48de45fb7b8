"""Activation functions and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import Value, ops
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    Kind,
    aten,
    const,
    elementwise,
    lower,
)


def _activation(packet: Any, operations: int = 6) -> Callable[..., Any]:
    def register(function: Callable[..., Value]) -> Callable[..., Value]:
        @lower(packet)
        def lowering(graph: Graph, *args: Any, **kwargs: Any) -> Box:
            boxes = [a for a in args if isinstance(a, Box)]
            rest = [a for a in args if not isinstance(a, Box)]
            return elementwise(
                graph, boxes, Kind.DEFAULT, lambda *v: function(*v, *rest, **kwargs),
                operations=operations, expensive=True,
            )  # fmt: skip

        return function

    return register


@_activation(aten.gelu.default)
def gelu(x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        half = ops.mul(x, const(0.5, x))
        cube = ops.mul(ops.mul(x, x), x)
        inner = ops.mul(
            const(math.sqrt(2 / math.pi), x),
            ops.add(x, ops.mul(const(0.044715, x), cube)),
        )
        return ops.mul(half, ops.add(const(1, x), ops.tanh(inner)))
    return ops.mul(x, ops.normal_cdf(x))


@_activation(aten.gelu_backward.default, 12)
def gelu_backward(grad: Value, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        beta, kappa = math.sqrt(2 / math.pi), 0.044715
        square = ops.mul(x, x)
        inner = ops.mul(const(beta, x), ops.add(x, ops.mul(const(kappa, x), ops.mul(square, x))))
        tanh = ops.tanh(inner)
        left = ops.mul(const(0.5, x), x)
        right = ops.add(const(1, x), tanh)
        slope = ops.sub(const(1, x), ops.mul(tanh, tanh))
        inner_slope = ops.mul(
            const(beta, x),
            ops.add(const(1, x), ops.mul(const(3 * kappa, x), square)),
        )
        return ops.mul(
            grad,
            ops.add(ops.mul(const(0.5, x), right), ops.mul(ops.mul(left, slope), inner_slope)),
        )
    density = ops.mul(
        ops.exp(ops.mul(ops.mul(x, x), const(-0.5, x))),
        const(1 / math.sqrt(2 * math.pi), x),
    )
    return ops.mul(grad, ops.add(ops.normal_cdf(x), ops.mul(x, density)))


@_activation(aten.silu.default)
def silu(x: Value) -> Value:
    return ops.truediv(x, ops.add(const(1, x), ops.exp(ops.neg(x))))


@_activation(aten.silu_backward.default)
def silu_backward(grad: Value, x: Value) -> Value:
    s = ops.sigmoid(x)
    slope = ops.add(const(1, x), ops.mul(x, ops.sub(const(1, x), s)))
    return ops.mul(ops.mul(grad, s), slope)


@_activation(aten.sigmoid_backward.default, 3)
def sigmoid_backward(grad: Value, y: Value) -> Value:
    return ops.mul(grad, ops.mul(ops.sub(const(1, y), y), y))


@_activation(aten.tanh_backward.default, 3)
def tanh_backward(grad: Value, y: Value) -> Value:
    return ops.mul(grad, ops.sub(const(1, y), ops.mul(y, y)))


@lower(aten.threshold.default)
def threshold(graph: Graph, a: Box, threshold: Any, value: Any) -> Box:
    """Of integers, eager converts both numbers; the decomposition would convert the elements."""

    def function(x: Value) -> Value:
        bound, other = const(threshold, x), const(value, x)
        if a.device.type != "cpu":  # there the bound is rounded to low precision
            bound = ops.to_dtype(bound, a.dtype)
        return ops.where(ops.le(x, bound), other, x)

    return elementwise(graph, [a], Kind.DEFAULT, function, operations=2)


@_activation(aten.threshold_backward.default, 2)
def threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    return ops.where(ops.le(x, const(threshold, x)), const(0, grad), grad)

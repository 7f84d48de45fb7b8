"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import EXPENSIVE, Value, ops
from magpy_like.compiler.lowering.conversions import to_dtype
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import (
    LOW_PRECISION,
    Kind,
    aten,
    broadcast_index,
    broadcast_shapes,
    common_device,
    const,
    convert,
    elementwise,
    is_number,
    lower,
    promote,
)

_DEFAULT = Kind.DEFAULT
_FLOAT = Kind.INT_TO_FLOAT
_BOOL = Kind.ALWAYS_BOOL
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

#: Device types on which eager keeps a Python number exact next to low precision tensors: in
#: products and quotients, and in sums.
CPU_AND_GPU, GPU_ONLY = ("cpu", "cuda"), ("cuda",)

#: ATen operator -> (ops name, promotion), for operators equal to one ``ops`` call.
DIRECT: dict[Any, tuple[str, Kind]] = {
    aten.neg: ("neg", _DEFAULT), aten.square: ("square", _DEFAULT),
    aten.exp: ("exp", _FLOAT), aten.exp2: ("exp2", _FLOAT), aten.expm1: ("expm1", _FLOAT),
    aten.log: ("log", _FLOAT), aten.log2: ("log2", _FLOAT), aten.log10: ("log10", _FLOAT),
    aten.log1p: ("log1p", _FLOAT), aten.sqrt: ("sqrt", _FLOAT), aten.rsqrt: ("rsqrt", _FLOAT),
    aten.reciprocal: ("reciprocal", _FLOAT), aten.sin: ("sin", _FLOAT), aten.cos: ("cos", _FLOAT),
    aten.tan: ("tan", _FLOAT), aten.asin: ("asin", _FLOAT), aten.acos: ("acos", _FLOAT),
    aten.atan: ("atan", _FLOAT), aten.atan2: ("atan2", _FLOAT), aten.sinh: ("sinh", _FLOAT),
    aten.cosh: ("cosh", _FLOAT), aten.tanh: ("tanh", _FLOAT), aten.asinh: ("asinh", _FLOAT),
    aten.acosh: ("acosh", _FLOAT), aten.atanh: ("atanh", _FLOAT), aten.erf: ("erf", _FLOAT),
    aten.erfc: ("erfc", _FLOAT), aten.lgamma: ("lgamma", _FLOAT),
    aten.sigmoid: ("sigmoid", _FLOAT),
    aten.hypot: ("hypot", _DEFAULT),
    aten.copysign: ("copysign", _FLOAT),
    aten.maximum: ("maximum", _DEFAULT), aten.minimum: ("minimum", _DEFAULT),
    aten.fmax: ("fmax", _DEFAULT), aten.fmin: ("fmin", _DEFAULT),
    aten.eq: ("eq", _BOOL), aten.ne: ("ne", _BOOL), aten.lt: ("lt", _BOOL),
    aten.le: ("le", _BOOL), aten.gt: ("gt", _BOOL), aten.ge: ("ge", _BOOL),
    aten.bitwise_not: ("bitwise_not", _DEFAULT),
    aten.bitwise_and: ("bitwise_and", _DEFAULT), aten.bitwise_or: ("bitwise_or", _DEFAULT),
    aten.bitwise_xor: ("bitwise_xor", _DEFAULT),
}  # fmt: skip


def _lower_direct(packet: Any, name: str, kind: Kind) -> None:
    @lower(packet)
    def lowering(graph: Graph, *args: Any) -> Box:
        boxes = [a for a in args if isinstance(a, Box)]
        if not boxes:
            raise Unsupported(str(packet), "only numbers")
        return elementwise(
            graph, args, kind, lambda *v: getattr(ops, name)(*v), expensive=name in EXPENSIVE
        )


for _packet, (_name, _kind) in DIRECT.items():
    _lower_direct(_packet, _name, _kind)


@lower(aten.nextafter.default)
def nextafter(graph: Graph, a: Box, b: Box) -> Box:
    if a.dtype in LOW_PRECISION:
        raise Unsupported("aten.nextafter", "of low precision")
    return elementwise(graph, [a, b], _DEFAULT, lambda x, y: ops.nextafter(x, y))


def _is_integral(graph: Graph, *args: Any) -> bool:
    return not promote(args, _DEFAULT)[0].is_floating_point


@lower(aten.add)
def add(graph: Graph, a: Any, b: Any, *, alpha: Any = 1) -> Box:
    compute, _ = promote([a, b], _DEFAULT)
    if compute == torch.bool:
        if alpha is True or alpha == 1:
            return elementwise(graph, [a, b], _DEFAULT, lambda x, y: ops.logical_or(x, y))
        raise Unsupported("aten.add", "bool with alpha")
    return _scaled_sum(graph, a, b, alpha, 1)


@lower(aten.sub)
def sub(graph: Graph, a: Any, b: Any, *, alpha: Any = 1) -> Box:
    return _scaled_sum(graph, a, b, alpha, -1)


@lower(aten.rsub)
def rsub(graph: Graph, a: Any, b: Any, alpha: Any = 1) -> Box:
    return sub(graph, b, a, alpha=alpha)


def _scaled_sum(graph: Graph, a: Any, b: Any, alpha: Any, sign: int) -> Box:
    """``a + sign * alpha * b``, rounded once; on CPUs ``alpha`` has the dtype of the operands."""

    def function(x: Value, y: Value) -> Value:
        return ops.add(x, y) if sign > 0 else ops.sub(x, y)

    if is_number(alpha) and alpha == 1:
        return elementwise(graph, [a, b], _DEFAULT, function, exact_scalars=GPU_ONLY)
    compute, common = promote([a, b], _DEFAULT)
    device = next(box.device.type for box in (a, b) if isinstance(box, Box))
    of_alpha = compute if device in GPU_ONLY and common.is_floating_point else common

    def scaled(x: Value, y: Value) -> Value:
        if not common.is_floating_point:
            return function(x, ops.mul(y, ops.to_dtype(ops.constant(alpha, of_alpha), of_alpha)))
        signed = alpha if sign > 0 else -alpha  # -0 is 0, where -0.0 is not 0.0
        return ops.fma(y, ops.to_dtype(ops.constant(signed, of_alpha), of_alpha), x)

    return elementwise(graph, [a, b], _DEFAULT, scaled, operations=2, exact_scalars=GPU_ONLY)


@lower(aten.mul)
def mul(graph: Graph, a: Any, b: Any) -> Box:
    compute, _ = promote([a, b], _DEFAULT)
    if compute == torch.bool:
        return elementwise(graph, [a, b], _DEFAULT, lambda x, y: ops.logical_and(x, y))
    return elementwise(
        graph, [a, b], _DEFAULT, lambda x, y: ops.mul(x, y), exact_scalars=CPU_AND_GPU
    )


@lower(aten.div.Tensor, aten.div.Scalar, aten.true_divide)
def div(graph: Graph, a: Any, b: Any) -> Box:
    return elementwise(
        graph,
        [a, b],
        _FLOAT,
        lambda x, y: ops.truediv(x, y),
        operations=2,
        exact_scalars=CPU_AND_GPU,
    )


def _rounded_quotient(
    name: str, graph: Graph, a: Any, b: Any, exact_scalars: Sequence[str] = ()
) -> Box:
    """A rounding division or its remainder; integer division by zero raises on CPUs, as
    in eager."""
    compute, _ = promote([a, b], _DEFAULT)
    checked = compute not in _FLOATS and not (isinstance(b, int) and b != 0)
    if compute == torch.bool:
        raise Unsupported(name, "of bools")

    def function(x: Value, y: Value) -> Value:
        if checked and boxes[0].device.type == "cpu":
            ops.check(ops.ne(y, ops.constant(0, y.dtype)), "ZeroDivisionError", "RuntimeError")
        if rounded is not None:
            return ops.trunc(ops.to_dtype(ops.truediv(x, y), rounded))
        return getattr(ops, name)(x, y)

    boxes = [v for v in (a, b) if isinstance(v, Box)]
    _, common = promote([a, b], _DEFAULT)
    # Eager on a GPU rounds the quotient of two tensors before truncating it.
    early = name == "truncdiv" and boxes[0].device.type == "cuda" and len(boxes) == 2
    rounded = common if early and common in LOW_PRECISION else None
    return elementwise(
        graph, [a, b], _DEFAULT, function, operations=6, expensive=True,
        exact_scalars=exact_scalars,
    )  # fmt: skip


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(graph: Graph, a: Any, b: Any, *, rounding_mode: str | None = None) -> Box:
    if rounding_mode is None:
        return div(graph, a, b)
    name = {"floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    return _rounded_quotient(name, graph, a, b, exact_scalars=CPU_AND_GPU)


@lower(aten.floor_divide)
def floor_divide(graph: Graph, a: Any, b: Any) -> Box:
    return div_mode(graph, a, b, rounding_mode="floor")


@lower(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(graph: Graph, a: Any, b: Any) -> Box:
    return _rounded_quotient("remainder", graph, a, b)


@lower(aten.fmod)
def fmod(graph: Graph, a: Any, b: Any) -> Box:
    return _rounded_quotient("fmod", graph, a, b)


@lower(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(graph: Graph, a: Any, b: Any) -> Box:
    if _is_integral(graph, a, b):
        if isinstance(b, int) and 0 <= b <= 4:
            return _small_power(graph, a, b)
        if promote([a, b], _DEFAULT)[0] == torch.bool or (is_number(b) and not b >= 0):
            raise Unsupported("aten.pow", "of bools, or to a negative power")
    if isinstance(b, (int, float)) and isinstance(a, Box):
        # Roots differ from powers at -inf and -0.0, and eager's CPU uses powers for float16.
        if abs(b) == 0.5 and (a.dtype != torch.float16 or a.device.type != "cpu"):
            root = "sqrt" if b > 0 else "rsqrt"
            return elementwise(graph, [a], _FLOAT, lambda x: getattr(ops, root)(x))
        if b in (1, 2, 3, -1, -2):
            return _small_power(graph, a, int(b), promote([a, b], _DEFAULT)[1])
    return elementwise(graph, [a, b], _DEFAULT, _power, expensive=True)


def _power(x: Value, y: Value) -> Value:
    """A power. C compilers turn known powers into roots, which differ at -inf and -0.0."""
    if y.op != "constant" or y.args[0] not in (0.5, -0.5):
        return ops.pow(x, y)
    infinite = ops.eq(x, const(-math.inf, x))
    root = ops.abs(ops.sqrt(ops.where(infinite, const(math.inf, x), x)))
    return root if y.args[0] > 0 else ops.truediv(const(1, x), root)


def _small_power(graph: Graph, a: Box, n: int, dtype: torch.dtype | None = None) -> Box:
    def function(x: Value) -> Value:
        result = ops.constant(1, x.dtype) if n == 0 else x
        for _ in range(abs(n) - 1):
            result = ops.mul(result, x)
        return ops.truediv(ops.constant(1, x.dtype), result) if n < 0 else result

    box = a if dtype in (None, a.dtype) else to_dtype(graph, a, dtype)
    return elementwise(graph, [box], _DEFAULT, function, operations=abs(n) + 1)


@lower(aten.abs)
def abs_(graph: Graph, a: Box) -> Box:
    if a.dtype in (torch.bool, torch.uint8):
        return elementwise(graph, [a], _DEFAULT, lambda x: x)
    return elementwise(graph, [a], _DEFAULT, lambda x: ops.abs(x))


@lower(aten.sign, aten.sgn)
def sign(graph: Graph, a: Box) -> Box:
    """-1, 0 or 1, and 0 of NaN."""
    if a.dtype == torch.bool:
        return elementwise(graph, [a], _DEFAULT, lambda x: x)
    return elementwise(graph, [a], _DEFAULT, lambda x: ops.sign(x))


def _lower_rounding(packet: Any, name: str) -> None:
    @lower(packet)
    def lowering(graph: Graph, a: Box) -> Box:
        if not a.dtype.is_floating_point:
            return elementwise(graph, [a], _DEFAULT, lambda x: x)
        return elementwise(graph, [a], _DEFAULT, lambda x: getattr(ops, name)(x))


_lower_rounding(aten.floor.default, "floor")
_lower_rounding(aten.ceil.default, "ceil")
_lower_rounding(aten.trunc.default, "trunc")
_lower_rounding(aten.fix.default, "trunc")
_lower_rounding(aten.round.default, "round")


@lower(aten.round.decimals)
def round_decimals(graph: Graph, a: Box, *, decimals: int) -> Box:
    """Round to a power of ten; a factor beyond low precision is rounded, as in eager."""
    if not a.dtype.is_floating_point:
        raise Unsupported("aten.round", "integers to decimals")

    def function(x: Value) -> Value:
        if decimals == 0:
            return ops.round(x)
        factor = ops.to_dtype(ops.constant(10.0 ** abs(decimals), x.dtype), a.dtype)
        there, back = (ops.truediv, ops.mul) if decimals < 0 else (ops.mul, ops.truediv)
        return back(ops.round(ops.to_dtype(there(x, factor), a.dtype)), factor)

    return elementwise(graph, [a], _DEFAULT, function, operations=4)


@lower(aten.relu)
def relu(graph: Graph, a: Box) -> Box:
    return clamp(graph, a, 0)


def _lower_predicate(packet: Any, name: str) -> None:
    @lower(packet)
    def lowering(graph: Graph, a: Box) -> Box:
        if a.dtype.is_floating_point:
            return elementwise(graph, [a], _BOOL, lambda x: getattr(ops, name)(x))
        if name == "signbit":
            return elementwise(graph, [a], _BOOL, lambda x: ops.lt(x, ops.constant(0, x.dtype)))
        return full_like_bool(graph, a, False)


@lower(aten.frexp.Tensor)
def frexp(graph: Graph, a: Box) -> list[Box]:
    """x = mantissa * 2 ** exponent with the mantissa in [1/2, 1), from the bits.

    Zero, infinity and NaN are their own mantissa.
    """
    if a.dtype not in _FLOATS or a.device.type != "cpu":
        raise Unsupported("aten.frexp", "of integers, or on another device")
    wide = a.dtype == torch.float64
    bits, digits, bias = (torch.int64, 52, 1022) if wide else (torch.int32, 23, 126)
    field = (2047 if wide else 255) << digits
    up = 128 if wide else 64  # gives subnormal numbers an exponent of their own

    def parts(x: Value) -> tuple[Value, Value]:
        small = ops.lt(ops.abs(x), const(2.0 ** (2 - bias), x))
        scaled = ops.where(small, ops.mul(x, const(2.0**up, x)), x)
        word = ops.bitcast(scaled, bits)
        raised = ops.shift_right(ops.bitwise_and(word, const(field, word)), const(digits, word))
        exponent = ops.sub(raised, const(bias, word))
        exponent = ops.where(small, ops.sub(exponent, const(up, word)), exponent)
        fraction = ops.bitwise_and(word, const(~field, word))
        mantissa = ops.bitcast(ops.bitwise_or(fraction, const(bias << digits, word)), x.dtype)
        other = ops.logical_or(ops.eq(x, const(0, x)), ops.logical_or(ops.isnan(x), ops.isinf(x)))
        return ops.where(other, x, mantissa), ops.where(other, const(0, word), exponent)

    return [
        elementwise(graph, [a], _DEFAULT, lambda x: parts(x)[0], operations=12),
        elementwise(
            graph, [a], _DEFAULT, lambda x: ops.to_dtype(parts(x)[1], torch.int32),
            dtype=torch.int32, operations=12,
        ),
    ]  # fmt: skip


def full_like_bool(graph: Graph, a: Box, value: bool) -> Box:
    return loop_ir.pointwise(
        graph, a.device, torch.bool, a.size, lambda index: ops.constant(value, torch.bool), []
    )


@lower(aten.angle.default)
def angle(graph: Graph, a: Box) -> Box:
    """0 or pi by the sign; NaN stays."""

    def function(x: Value) -> Value:
        turned = ops.where(ops.lt(x, const(0, x)), const(math.pi, x), const(0, x))
        return ops.where(ops.isnan(x), x, turned)

    return elementwise(graph, [a], _FLOAT, function, operations=3)


_lower_predicate(aten.isnan.default, "isnan")
_lower_predicate(aten.isinf.default, "isinf")
_lower_predicate(aten.signbit.default, "signbit")


@lower(aten.logical_not.default)
def logical_not(graph: Graph, a: Box) -> Box:
    def function(value: Value) -> Value:
        truth = value if value.dtype == torch.bool else ops.ne(value, ops.constant(0, value.dtype))
        return ops.logical_not(truth)

    return elementwise(graph, [a], _BOOL, function, operations=2)


def _lower_shift(packets: list[Any], name: str) -> None:
    @lower(*packets)
    def lowering(graph: Graph, a: Any, b: Any) -> Box:
        if not _is_integral(graph, a, b):
            raise Unsupported(name, "shift of floats")
        return elementwise(graph, [a, b], _DEFAULT, lambda x, y: getattr(ops, name)(x, y))


_lower_shift([aten.bitwise_left_shift, aten.__lshift__], "shift_left")
_lower_shift([aten.bitwise_right_shift, aten.__rshift__], "shift_right")


@lower(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(graph: Graph, condition: Box, a: Any, b: Any) -> Box:
    compute, dtype = promote([a, b], _DEFAULT)
    boxes = [x for x in (condition, a, b) if isinstance(x, Box)]
    size = broadcast_shapes(*(x.size for x in boxes))

    def inner(index: Any) -> Value:
        test = condition.load(broadcast_index(condition, index))
        if test.dtype != torch.bool:
            test = ops.ne(test, ops.constant(0, test.dtype))
        sides = [
            convert(x.load(broadcast_index(x, index)), x.dtype, compute)
            if isinstance(x, Box)
            else ops.constant(x, compute)
            for x in (a, b)
        ]
        return ops.where(test, *sides)

    return loop_ir.pointwise(graph, common_device(boxes), dtype, size, inner, boxes)


@lower(aten.masked_fill.Scalar)
def masked_fill(graph: Graph, a: Box, mask: Box, value: Any) -> Box:
    compute = a.dtype

    def inner(index: Any) -> Value:
        test = mask.load(broadcast_index(mask, index))
        x = a.load(broadcast_index(a, index))
        return ops.where(test, ops.constant(value, compute), x)

    size = broadcast_shapes(a.size, mask.size)
    return loop_ir.pointwise(graph, a.device, a.dtype, size, inner, [a, mask])


@lower(aten.clamp.default, aten.clamp.Tensor)
def clamp(graph: Graph, a: Box, low: Any = None, high: Any = None) -> Box:
    bounds = [b for b in (low, high) if b is not None]

    on_cpu = a.device.type == "cpu"

    def limited(extreme: Callable[..., Value], x: Value, limit: Value) -> Value:
        # Of equal numbers (zeros of both signs) the second argument is taken; of NaN, any.
        return extreme(limit, x) if on_cpu else extreme(x, limit)

    def function(x: Value, *limits: Value) -> Value:
        rest = list(limits)
        if low is not None:
            x = limited(ops.maximum, x, rest.pop(0))
        if high is not None:
            x = limited(ops.minimum, x, rest.pop(0))
        return x

    return elementwise(graph, [a, *bounds], _DEFAULT, function, operations=2)


@lower(aten.clamp_min)
def clamp_min(graph: Graph, a: Box, low: Any) -> Box:
    return clamp(graph, a, low, None)


@lower(aten.clamp_max)
def clamp_max(graph: Graph, a: Box, high: Any) -> Box:
    return clamp(graph, a, None, high)

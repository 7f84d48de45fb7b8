"""The table of lowerings, and helpers of all lowerings: promotion, broadcasting, views.

A lowering takes the :class:`~magpy_like.compiler.lowering.graph_lowering.Graph` and the operator's
arguments, with a Box for each tensor and a SymPy expression for each symbolic number, and returns
the operator's result in the same form. It raises ``Unsupported`` for cases left to ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box, Index, Strided, View
from magpy_like.compiler.ir.ops import LOW_PRECISION, Value, compute_dtype, ops
from magpy_like.compiler.ir.size_names import expr
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.torch_compat.decompositions import TypePromotionKind as Kind
from magpy_like.torch_compat.decompositions import elementwise_dtypes
from magpy_like.torch_compat.operators import OpOverloadPacket

Lowering = Callable[..., Any]
LOWERINGS: dict[Any, Lowering] = {}
aten = torch.ops.aten

__all__ = [
    "LOWERINGS", "Kind", "aten", "broadcast_shapes", "canonical_dim", "const", "convert", "expand",
    "is_number", "lower", "promote", "scalar_dtype_like", "view_of",
]  # fmt: skip


def lower(*operators: Any) -> Callable[[Lowering], Lowering]:
    """Register a lowering for overloads, or for all overloads of a packet except ``out`` ones."""

    def register(function: Lowering) -> Lowering:
        for operator in operators:
            if isinstance(operator, OpOverloadPacket):
                for name in operator.overloads():
                    overload = getattr(operator, name)
                    if not overload._schema.is_mutable:
                        LOWERINGS[overload] = function
            else:
                LOWERINGS[operator] = function
        return function

    return register


def is_number(value: Any) -> bool:
    """True for a Python number or a symbolic one (not a tensor)."""
    return isinstance(value, (int, float, bool, sympy.Basic))


def canonical_dim(dim: Any, rank: int) -> int:
    """A dimension in [0, rank); a 0-d tensor counts as one-dimensional."""
    dim = int(dim)
    return dim + max(rank, 1) if dim < 0 else dim


def convert(value: Value, source: torch.dtype, target: torch.dtype) -> Value:
    """A loaded value of a ``source`` tensor in the compute dtype of ``target``, not rounded."""
    if compute_dtype(target) == value.dtype:
        return value
    return ops.to_dtype(value, compute_dtype(target))


def convert_first(value: Value, source: torch.dtype, target: torch.dtype) -> Value:
    """:func:`convert`, rounded: an element that eager converts before it computes."""
    return ops.to_dtype(value, target) if source != target else value


def const(number: float, like: Value) -> Value:
    """A constant of the dtype of another value."""
    return ops.constant(number, like.dtype)


def scalar_dtype_like(number: Any) -> Any:
    """A representative of the same kind for type promotion: 1, 1.0 or True."""
    if isinstance(number, bool) or number in (sympy.true, sympy.false):
        return True
    if isinstance(number, int) or (isinstance(number, sympy.Basic) and number.is_integer):
        return 1
    return 1.0


def promote(args: Sequence[Any], kind: Kind) -> tuple[torch.dtype, torch.dtype]:
    """(computation dtype, result dtype) of an elementwise operator, by eager's promotion."""
    stand_ins = [
        torch.empty([1] * len(a.size), dtype=a.dtype, device="meta")
        if isinstance(a, Box)
        else scalar_dtype_like(a)
        for a in args
    ]
    return elementwise_dtypes(*stand_ins, type_promotion_kind=kind)


def broadcast_shapes(*shapes: Sequence[Expr]) -> list[Expr]:
    """The broadcast shape; symbolic sizes that differ are equal by guards."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Expr] = [sympy.S.One] * rank
    for shape in shapes:
        for k, size in enumerate(reversed(shape)):
            position = rank - 1 - k
            if result[position] == 1 or (size.is_Integer and size != 1):
                result[position] = size
    return result


def broadcast_index(box: Box, index: Index) -> list[Expr]:
    """The index into ``box`` that corresponds to ``index`` after broadcasting."""
    tail = index[len(index) - len(box.size) :]
    return [sympy.S.Zero if s == 1 else i for i, s in zip(tail, box.size, strict=True)]


def view_of(
    base: Box,
    size: Sequence[Expr],
    reindex: Callable[[Index], Index],
    restride: Callable[[Strided], Strided | None],
    dtype: torch.dtype | None = None,
) -> Box:
    """``base`` under an index mapping; a window if ``base`` is memory and strides express it."""
    window = base.strided()
    if window is not None:
        viewed = restride(window)
        if viewed is not None:
            return Box(base.graph, dtype or base.dtype, base.device, list(size), viewed)
    view = View(base, reindex, restride)
    return Box(base.graph, dtype or base.dtype, base.device, list(size), view)


def expand(box: Box, size: Sequence[Expr]) -> Box:
    """Broadcast ``box`` to ``size``."""
    size = list(size)
    if size == box.size:
        return box
    lead = len(size) - len(box.size)
    if lead < 0:
        raise Unsupported("expand", "fewer dimensions than the tensor has")

    def restride(window: Strided) -> Strided:
        stride = [sympy.S.Zero] * lead + [
            sympy.S.Zero if old == 1 and new != 1 else step
            for old, new, step in zip(window.size, size[lead:], window.stride, strict=True)
        ]
        return Strided(window.buffer, size, stride, window.offset)

    return view_of(box, size, lambda index: broadcast_index(box, index), restride)


def elementwise(
    graph: Graph,
    args: Sequence[Any],
    kind: Kind,
    function: Callable[..., Value],
    *,
    dtype: torch.dtype | None = None,
    operations: int = 1,
    expensive: bool = False,
    exact_scalars: Sequence[str] = (),
) -> Box:
    """Broadcast, promote and apply ``function`` to each element's values.

    ``function`` receives one Value per argument, in the computation dtype. ``dtype`` overrides the
    result's. A 0-d CPU tensor among CUDA tensors is left to ATen.

    Eager converts all arguments to one dtype, which rounds for bfloat16 and float16.
    ``exact_scalars``: device types on which numbers (and 0-d tensors on CPUs) stay exact.
    """
    boxes = [a for a in args if isinstance(a, Box)]
    device = common_device(boxes)
    compute, result = promote(args, kind)
    _, common = promote(args, Kind.NO_OPMATH if kind is Kind.ALWAYS_BOOL else kind)
    size = broadcast_shapes(*(b.size for b in boxes))

    def argument(a: Any, index: Index) -> Value:
        scalar = not a.size and device.type == "cpu" if isinstance(a, Box) else True
        exact = scalar and device.type in exact_scalars and bool(size)
        target = compute if exact else common
        if not isinstance(a, Box):
            value = ops.constant(a, compute)
            return ops.to_dtype(value, target) if target in LOW_PRECISION else value
        value = a.load(broadcast_index(a, index))
        if target in LOW_PRECISION:
            return ops.to_dtype(value, target)
        return convert(value, a.dtype, compute)

    def inner(index: Index) -> Value:
        return function(*(argument(a, index) for a in args))

    return loop_ir.pointwise(
        graph, device, dtype or result, size, inner, boxes,
        operations=operations, expensive=expensive,
    )  # fmt: skip


def common_device(boxes: Sequence[Box]) -> torch.device:
    """The device of all boxes. Raises Unsupported if they differ."""
    devices = {b.device for b in boxes}
    if len(devices) != 1:
        raise Unsupported("an elementwise operator", f"tensors on {len(devices)} devices")
    return boxes[0].device


def sizes(values: Sequence[Any]) -> list[Expr]:
    """Sizes as SymPy expressions."""
    return [expr(v) for v in values]

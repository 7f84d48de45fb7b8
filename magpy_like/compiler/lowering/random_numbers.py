"""Random numbers: drawn by ATen from eager's generator, in eager's order.

Only the draw is left to ATen, so every stream is bit-equal to eager's; the arithmetic on it is
lowered.
"""

from __future__ import annotations

from typing import Any

import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import ops
from magpy_like.compiler.lowering.conversions import clone, full
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import Kind, aten, elementwise, lower
from magpy_like.compiler.passes.graph_queries import is_in_order


@lower(aten.native_dropout.default)
def native_dropout(graph: Graph, a: Box, p: float, train: bool | None) -> list[Box]:
    if train is False:
        return [clone(graph, a), full(graph, a.size, True, torch.bool, a.device)]
    assert graph.origin is not None
    if a.device.type != "cpu" or 0 in a.size:
        raise Unsupported("aten.native_dropout", "eager draws in another way on this device")
    value: Any = graph.origin.meta["val"][1]
    if not is_in_order(value):
        argument: Any = graph.origin.args[0]
        laid_out = graph.with_eager_strides(a, argument.meta["val"])
        args = (laid_out, p, train)
        return graph.fallback(aten.native_dropout.default, args, {}, graph.origin.meta["val"])
    kept = 1.0 - p
    scale = 0.0 if kept == 0 else 1.0 / kept
    mask = graph.fallback(
        aten.bernoulli.p, (full(graph, a.size, False, torch.bool, a.device), kept), {}, value
    )
    result = elementwise(
        graph, [a, mask], Kind.DEFAULT,
        lambda x, m: ops.mul(ops.mul(x, m), ops.constant(scale, x.dtype)), operations=3,
    )  # fmt: skip
    return [result, mask]

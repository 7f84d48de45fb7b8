"""Random numbers: drawn by ATen from the generator that eager would use, in eager's order.

Only the drawing is left to ATen, so every stream is bit-equal to eager's; the arithmetic on what
was drawn is lowered.
"""

from __future__ import annotations

from typing import Any

import torch

from magpy_like.compiler.errors import Unsupported
from magpy_like.compiler.graph import Graph
from magpy_like.compiler.ir import Box
from magpy_like.compiler.lowering.pointwise import clone, full
from magpy_like.compiler.lowering.registry import Kind, aten, elementwise, lower
from magpy_like.compiler.ops import ops


@lower(aten.native_dropout.default)
def native_dropout(graph: Graph, a: Box, p: float, train: bool | None) -> list[Box]:
    if train is False:
        return [clone(graph, a), full(graph, a.size, True, torch.bool, a.device)]
    assert graph._origin is not None
    if a.device.type != "cpu" or 0 in a.size:
        raise Unsupported("aten.native_dropout", "eager draws differently there")
    kept = 1.0 - p
    scale = 0.0 if kept == 0 else 1.0 / kept
    value: Any = graph._origin.meta["val"][1]
    mask = graph.fallback(
        aten.bernoulli.p, (full(graph, a.size, False, torch.bool, a.device), kept), {}, value
    )
    result = elementwise(
        graph, [a, mask], Kind.DEFAULT,
        lambda x, m: ops.mul(ops.mul(x, m), ops.constant(scale, x.dtype)), operations=3,
    )  # fmt: skip
    return [result, mask]

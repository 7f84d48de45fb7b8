"""Products of a matrix and a vector on a GPU, as reductions that fuse with the operators around.

A token of decoding, or one sample of a small network, multiplies each weight by one row. The memory
that holds the matrix bounds such a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import ops
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import aten, broadcast_index, convert, lower
from magpy_like.compiler.lowering.views import permute, reshape, select

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@lower(aten.mm.default)
def mm(graph: Graph, a: Box, b: Box) -> Box:
    return _product(graph, a, b, None)


@lower(aten.addmm.default)
def addmm(graph: Graph, bias: Box, a: Box, b: Box, *, beta: Any = 1, alpha: Any = 1) -> Box:
    if (beta, alpha) != (1, 1):
        raise Unsupported("aten.addmm", "with factors")
    return _product(graph, a, b, bias)


def _product(graph: Graph, a: Box, b: Box, bias: Box | None) -> Box:
    """``a @ b + bias`` for one row or one column, accumulated in float32."""
    size = [a.size[0], b.size[1]]
    if a.device.type != "cuda" or a.dtype not in _DTYPES:
        raise Unsupported("aten.mm", f"of {a.dtype} on {a.device.type}")
    if 1 not in size or 0 in (*size, a.size[1]):
        raise Unsupported("aten.mm", "not of a matrix and a vector")
    if size[0] == 1:
        matrix, vector = permute(graph, b, [1, 0]), select(graph, a, 0, 0)
    else:
        matrix, vector = a, select(graph, b, 1, 0)
    window = matrix.strided()
    if window is None or window.stride[1] != 1:
        raise Unsupported("aten.mm", "a matrix whose rows are not contiguous")
    vector.realize()  # each row of the matrix reads all of it
    buffer = graph.new_buffer(a.dtype, a.device, [matrix.size[0]])

    def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
        (row,), (column,) = xs, rs
        pair = matrix.load([row, column]), vector.load([column])
        total = ops.reduction("sum", ops.mul(*(convert(v, a.dtype, torch.float32) for v in pair)))
        if bias is not None:
            index = [0, row] if size[0] == 1 else [row, 0]
            value = bias.load(broadcast_index(bias, index))
            total = ops.add(total, convert(value, bias.dtype, torch.float32))
        ops.store(buffer.name, buffer.address([row]), total)

    graph.add_loops([matrix.size[0]], [matrix.size[1]], loops)
    return reshape(graph.box(buffer), size)

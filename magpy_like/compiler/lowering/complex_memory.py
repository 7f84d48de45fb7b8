"""Complex tensors as pairs of reals: kernels access the parts, the launcher reinterprets the
memory."""

from __future__ import annotations

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import aten, common_device, expand, lower, sizes
from magpy_like.compiler.lowering.views import slice_box, squeeze


@lower(aten.view_as_real.default, aten.view_as_complex.default)
def reinterpret(graph: Graph, a: Box) -> Box:
    """The same memory in the other dtype: a view through ATen."""
    origin = graph.origin
    assert origin is not None
    return graph.fallback(origin.target, (a,), {}, origin.meta["val"])


@lower(aten.complex.default)
def complex_(graph: Graph, real: Box, imaginary: Box) -> Box:
    """Computed parts are stored in place. Parts that are memory already are left to ATen, which
    interleaves them faster."""
    assert graph.origin is not None
    meta: torch.Tensor = graph.origin.meta["val"]
    parts = (real, imaginary)
    if all(part.strided() is not None for part in parts) or real.dtype != imaginary.dtype:
        raise Unsupported("aten.complex", "of parts in memory, or of two dtypes")
    two, size = sympy.Integer(2), sizes(meta.shape)
    stride = [two * step for step in sizes(meta.stride())]
    buffer = graph.new_buffer(
        real.dtype, common_device(parts), [*size, two], [*stride, sympy.S.One]
    )  # fmt: skip
    graph.concatenated.add(buffer.name)
    pairs = graph.box(buffer)
    for k, part in enumerate(parts):
        target = slice_box(pairs, len(size), sympy.Integer(k), sympy.S.One, sympy.S.One)
        graph.store_into(expand(part, size), squeeze(graph, target, len(size)))
    return graph.fallback(aten.view_as_complex.default, (pairs,), {}, meta)

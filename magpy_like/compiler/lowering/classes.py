"""An operator of our own that looks whether classes are among those that there are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler import ir
from magpy_like.compiler.graph import Graph
from magpy_like.compiler.ir import Box, Index
from magpy_like.compiler.lowering.registry import lower
from magpy_like.compiler.ops import Value, ops

_OUTSIDE = "Target is out of bounds."

_library = torch.library.Library("magpy_like", "FRAGMENT")
_library.define("classes(Tensor target, SymInt count, int ignored) -> Tensor")


def _classes(target: Tensor, count: int, ignored: int) -> Tensor:
    """A copy of ``target``. Raises IndexError where that is neither of ``count`` classes nor
    ``ignored``."""
    known = (target == ignored) | ((target >= 0) & (target < count))
    if not known.all():
        raise IndexError(_OUTSIDE)
    return target.clone()


_library.impl("classes", _classes, "CompositeExplicitAutograd")
torch.library.register_fake("magpy_like::classes", lambda t, *_: t.clone(), lib=_library)


@lower(torch.ops.magpy_like.classes.default)
def classes(graph: Graph, target: Box, count: Any, ignored: int) -> Box:
    def inner(index: Index) -> Value:
        at = ops.to_dtype(target.load(index), torch.int64)
        zero, extent = ops.constant(0, torch.int64), ops.index_expr(count, torch.int64)
        known = ops.logical_and(ops.ge(at, zero), ops.lt(at, extent))
        ops.check(ops.logical_or(known, ops.eq(at, ops.constant(ignored, at.dtype))), _OUTSIDE)
        return ops.to_dtype(at, target.dtype)

    return ir.pointwise(graph, target.device, target.dtype, target.size, inner, [target])

"""Lowerings: the table from ATen operators to loop IR, one module per family."""

from magpy_like.compiler.lowering import (
    admitted,
    complexes,
    concat,
    counting,
    fractional,
    grid,
    indexing,
    pointwise,
    pooling,
    random,
    reduction,
    scan,
    search,
    special,
    view,
)
from magpy_like.compiler.lowering.registry import LOWERINGS

__all__ = [
    "LOWERINGS", "admitted", "complexes", "concat", "counting", "fractional", "grid", "indexing",
    "pointwise", "pooling", "random", "reduction", "scan", "search", "special", "view",
]  # fmt: skip

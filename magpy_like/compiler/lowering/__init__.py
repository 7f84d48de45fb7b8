"""Lowerings: the table from ATen operators to loop IR, one module per family."""

from magpy_like.compiler.lowering import concat, pointwise, reduction, view
from magpy_like.compiler.lowering.registry import LOWERINGS

__all__ = ["LOWERINGS", "concat", "pointwise", "reduction", "view"]

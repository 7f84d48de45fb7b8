"""Lowerings: the table from ATen operators to loop IR, one module per family."""

from magpy_like.compiler.lowering import (  # noqa: F401 (each module adds to the table)
    activations,
    complex_memory,
    concatenation,
    conversions,
    fractional_pooling,
    grid_sampling,
    histogram,
    indexed_access,
    pointwise,
    pooling,
    random_numbers,
    reductions,
    scans,
    sorted_search,
    special_math,
    value_checks,
    views,
)
from magpy_like.compiler.lowering.lowering_table import LOWERINGS

__all__ = ["LOWERINGS"]

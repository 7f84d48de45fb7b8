"""Decompositions of operators, and the rules for dtypes and layouts that they follow."""

from __future__ import annotations

from torch._decomp import core_aten_decompositions, get_decompositions
from torch._decomp.decompositions import _compute_scale as resize_scale
from torch._decomp.decompositions import _compute_source_index as resize_source_index
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as TypePromotionKind
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    elementwise_dtypes,
    suggest_memory_format,
)

__all__ = [
    "TypePromotionKind",
    "compute_elementwise_output_logical_to_physical_perm",
    "core_aten_decompositions",
    "elementwise_dtypes",
    "get_decompositions",
    "resize_scale",
    "resize_source_index",
    "suggest_memory_format",
]

# `resize_scale` and `resize_source_index` are the arithmetic of `F.interpolate`: the distance
# between samples, and the position in the image of an output pixel.

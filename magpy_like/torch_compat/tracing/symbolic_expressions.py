"""Torch's sympy: functions of sizes, value ranges, interpretation and printing."""

from __future__ import annotations

from torch.fx.experimental.symbolic_shapes import _maybe_evaluate_static_worker
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

__all__ = [
    "SIZE_RELATIONS",
    "FloorDiv",
    "PythonPrinter",
    "PythonReferenceAnalysis",
    "ValueRanges",
    "bound_sympy",
    "sympy_functions",
    "sympy_interp",
]

# `sympy_functions` is the module of the classes (`FloorDiv`, `Mod`, `Max`, ...) of which sizes in
# graphs consist. `sympy_interp(PythonReferenceAnalysis, {symbol: number}, expression)` computes an
# expression as Python would. `bound_sympy(expression, ranges)` returns its `ValueRanges`.

SIZE_RELATIONS = _maybe_evaluate_static_worker
"""Evaluates relations of sizes; a function with a cache without bound, which all environments
share."""

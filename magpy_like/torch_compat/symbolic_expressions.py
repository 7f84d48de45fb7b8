"""Torch's sympy: functions of sizes, value ranges, interpretation and printing."""

from __future__ import annotations

from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

__all__ = [
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

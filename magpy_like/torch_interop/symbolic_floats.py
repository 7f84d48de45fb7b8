"""Symbolic floats: agreement of their expressions in torch with the steps of the program.

SymPy computes with real numbers: it reorders sums and products, ``0 * x`` is 0, and ``0 - 0`` has
no sign. Floats are rounded at each step, and may be infinite or no number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from magpy_like.torch_compat.tracing.symbolic_expressions import sympy_functions


def computes_as_written(
    operation: Callable[..., Any], operands: Sequence[Any], result: Any
) -> bool:
    """True if the expression of ``result`` is one step, ``operation(*operands)``.

    Operands and result are numbers, symbolic or not; the result is a float.
    """
    forms = _FORMS.get(operation, ())
    if not isinstance(result, torch.SymFloat) or result.node.expr.func not in forms:
        return False
    if not any(form in (sympy.Add, sympy.Mul) for form in forms):
        return True
    one, other = map(_float_expression, operands)
    other = -other if operation in (operator.sub, operator.isub) else other
    return sorted(result.node.expr.args, key=str) == sorted((one, other), key=str)


def _float_expression(number: Any) -> Any:
    """The SymPy expression of an operand of float arithmetic."""
    if isinstance(number, torch.SymInt):
        number = torch.sym_float(number)
    return number.node.expr if isinstance(number, torch.SymFloat) else sympy.Float(float(number))


_QUOTIENTS = (sympy_functions.IntTrueDiv, sympy_functions.FloatTrueDiv)

_FORMS: dict[Any, tuple[Any, ...]] = {
    operator.add: (sympy.Add,),
    operator.iadd: (sympy.Add,),
    operator.sub: (sympy.Add,),
    operator.isub: (sympy.Add,),
    operator.mul: (sympy.Mul,),
    operator.imul: (sympy.Mul,),
    operator.truediv: _QUOTIENTS,
    operator.itruediv: _QUOTIENTS,
    float: (sympy_functions.ToFloat,),
    torch.sym_float: (sympy_functions.ToFloat,),
}
"""Operations that return floats, and what SymPy makes of them if it simplifies nothing."""

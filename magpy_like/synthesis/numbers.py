"""Source text of the expressions that lifted numbers are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from magpy_like.monitor.expressions import AsPython, Computed, Draw, InGraph, Read, Size
from magpy_like.monitor.operators import OPERATORS
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph import ShadowNode
from magpy_like.synthesis.source import literal

_COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
_SYMBOLS = {
    function: symbol.removesuffix("=")
    for symbol, function in OPERATORS.items()
    if symbol not in _COMPARISONS
} | {OPERATORS[symbol]: symbol for symbol in _COMPARISONS}
_SIGNS = {"neg": "-", "pos": "+", "invert": "~", "not_": "not "}


def text(
    expression: Any,
    name: Callable[[ShadowNode], str],
    constant: Callable[[Any], str],
    output: Callable[[fx.Node], str] | None = None,
) -> str:
    """Python source for an expression.

    ``name`` gives the variable that holds a number read outside, ``output`` that of a number which
    the operator graph gives.
    """
    if isinstance(expression, InGraph):
        assert output is not None
        return output(expression.node)
    if isinstance(expression, Read):
        return name(expression.node)
    if isinstance(expression, Size):
        return f"{name(expression.node)}.size({expression.dim})"
    if isinstance(expression, Draw):
        item = "" if expression.item is None else f"[{expression.item}]"
        return f"draw{expression.index}{item}"
    if isinstance(expression, AsPython):
        return f"{text(expression.number, name, constant, output)}.item()"
    if not isinstance(expression, Computed):
        return literal(expression) or constant(expression)
    operands = [text(operand, name, constant, output) for operand in expression.operands]
    symbol = _SYMBOLS.get(expression.operation)
    if symbol is not None:
        return f"({operands[0]} {symbol} {operands[1]})"
    sign = _SIGNS.get(getattr(expression.operation, "__name__", ""))
    if sign is not None and len(operands) == 1:
        return f"({sign}{operands[0]})"
    return f"{constant(expression.operation)}({', '.join(operands)})"

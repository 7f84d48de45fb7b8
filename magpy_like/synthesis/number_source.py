"""Source text of expressions over lifted numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from magpy_like.monitor.calls.python_operators import OPERATORS
from magpy_like.monitor.symbolic.expressions import (
    Address,
    Computed,
    DrawnValue,
    EntryValue,
    GraphNumber,
    PythonScalar,
    Size,
    Stride,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.synthesis.generated_source import literal

Named = Computed | Size | Stride


class Numbers:
    """Names for computed numbers of a function in the making, so that each is computed once."""

    def __init__(
        self,
        in_python: Mapping[fx.Node, Computed],
        name: Callable[[ShadowNode], str],
        constant: Callable[[Any], str],
        output: Callable[[fx.Node], str],
        is_reshaped: Callable[[ShadowNode], bool],
    ) -> None:
        """``in_python`` are the nodes of the graph that Python computes; ``is_reshaped`` tells
        tensors whose sizes or strides the program changes; see ``text`` for the others."""
        self._in_python, self._is_reshaped = in_python, is_reshaped
        self._namers = name, constant, output
        self._names: dict[Named, str] = {}
        self._written = set[Named]()

    def text(self, expression: Any) -> str:
        """The source text of a number: for a computed one, a name that ``lines`` defines, and for
        a size or stride that changes later."""
        if is_instance(expression, GraphNumber):
            expression = self._in_python.get(expression.node, expression)
        if self._is_named(expression):
            return self._names.setdefault(expression, f"number{len(self._names)}")
        return text(expression, *self._namers)

    def _is_named(self, expression: Any) -> bool:
        if is_instance(expression, Size | Stride):
            return self._is_reshaped(expression.node)
        return is_instance(expression, Computed)

    def lines(self, wanted: Callable[[Named], bool]) -> list[str]:
        """Statements that compute the wanted ones of the named numbers, each once."""
        lines, pending = [], [e for e in reversed(self._names) if wanted(e)]
        while pending:
            number = pending[-1]
            operands = number.operands if is_instance(number, Computed) else ()
            named = [e for e in operands if self._is_named(e) and wanted(e)]
            missing = [e for e in named if e not in self._written]
            if missing and number not in self._written:
                pending += missing
                continue
            pending.pop()
            if number not in self._written:
                self._written.add(number)
                lines.append(f"{self.text(number)} = {self._value(number)}")
        return lines

    def _value(self, number: Named) -> str:
        if not is_instance(number, Computed):
            return text(number, *self._namers)
        parts = [self.text(operand) for operand in number.operands]
        return _operation(number.operation, parts, self._namers[1])


def is_short(expression: Any, most: int = 8) -> bool:
    """True for a computed expression with so few operations that it may be written twice."""
    pending = [expression]
    while pending and most >= 0:
        part = pending.pop()
        if is_instance(part, Computed):
            most -= 1
            pending += part.operands
    return is_instance(expression, Computed) and most >= 0


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

    ``name`` names the variable of an external number, ``constant`` an object, and ``output`` a
    result of the operator graph.
    """
    if is_instance(expression, GraphNumber):
        assert output is not None
        return output(expression.node)
    if is_instance(expression, EntryValue):
        return name(expression.node)
    if is_instance(expression, Size):
        return f"{name(expression.node)}.size({expression.dim})"
    if is_instance(expression, Stride):
        return f"{name(expression.node)}.stride({expression.dim})"
    if is_instance(expression, Address):
        return f"{constant(expression.function)}({name(expression.node)})"
    if is_instance(expression, DrawnValue):
        item = "" if expression.item is None else f"[{expression.item}]"
        return f"draw{expression.index}{item}"
    if is_instance(expression, PythonScalar):
        return f"{text(expression.number, name, constant, output)}.item()"
    if not is_instance(expression, Computed):
        written = literal(expression) or constant(expression)
        return f"({written})" if written.startswith("-") else written  # a power binds stronger
    operands = [text(operand, name, constant, output) for operand in expression.operands]
    return _operation(expression.operation, operands, constant)


def _operation(operation: Any, operands: list[str], constant: Callable[[Any], str]) -> str:
    symbol = _SYMBOLS.get(operation)
    if symbol is not None:
        return f"({operands[0]} {symbol} {operands[1]})"
    sign = _SIGNS.get(getattr(operation, "__name__", ""))
    if sign is not None and len(operands) == 1:
        return f"({sign}{operands[0]})"
    return f"{constant(operation)}({', '.join(operands)})"

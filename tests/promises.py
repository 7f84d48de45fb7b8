"""What an operator graph may rely on of its inputs: that they are like those that the backend was
shown. The eager backend relies on nothing, so its answers do not tell of a guard that forgot this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.symbol import SymT, symbol_is_type

from magpy_like.synthesis.shared_graphs import _MODES

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_UNKNOWN = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)


class Promise:
    """The examples of a graph's inputs, by which others are judged."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self._forms = [_form(example) for example in examples]
        self._modes = [look() for look in _MODES]
        symbolic = [n for _, numbers in self._forms for n in numbers if isinstance(n, _SYMBOLIC)]
        self._env = symbolic[0].node.shape_env if symbolic else None

    def broken_by(self, given: Sequence[Any]) -> str | None:
        """What is not as promised, in words."""
        modes = [look() for look in _MODES]
        if modes != self._modes:
            return f"torch's modes are {modes}, not {self._modes}"
        values: dict[Any, Any] = {}
        pairs = []
        for i, ((kind, numbers), value) in enumerate(zip(self._forms, given, strict=True)):
            found, others = _form(value)
            if found != kind or len(others) != len(numbers):
                return f"input {i} is {found}, not {kind}"
            for number, other in zip(numbers, others, strict=True):
                pairs.append((i, number, other))
                if isinstance(number, _SYMBOLIC) and number.node.expr.is_Symbol:
                    values[number.node.expr] = sympy.sympify(other)
        for i, number, other in pairs:
            if isinstance(number, _SYMBOLIC):
                number = number.node.expr.xreplace(values)
                if number.free_symbols:
                    continue
            if str(number) != str(other) and number != other:
                return f"input {i} has {other}, not {number}"
        return None if self._env is None else self._outside(values)

    def _outside(self, values: dict[Any, Any]) -> str | None:
        """What the graph's shape environment relied on, and these numbers do not fulfil. What
        operators ask of a number that no guard knows they ask anew."""
        values = {s: n for s, n in values.items() if not symbol_is_type(s, _UNKNOWN)}
        for symbol, value in values.items():
            limits = self._env.var_to_range.get(symbol)
            if limits is not None and not limits.lower <= value <= limits.upper:
                return f"{value} is not in {limits}"
        for guard in self._env.guards:
            if guard.expr.xreplace(values) == sympy.false:
                return f"not {guard.expr}"
        return None


def _form(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What an input is, and its numbers."""
    if not isinstance(value, torch.Tensor):
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}.get(type(value))
        kind = kind or type(value)
        return (kind,), (value,) if issubclass(kind, (int, float)) else ()
    kind = value.dtype, value.device, value.requires_grad, value.layout, value.dim()
    if value.layout is not torch.strided:
        return kind, tuple(value.shape)
    return kind, (*value.shape, *value.stride())

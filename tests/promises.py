"""Promises to operator graphs: inputs have the form of the examples that the backend received.

The eager backend does not rely on the form of inputs, so its results do not reveal a guard without
the necessary conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.symbol import SymT, symbol_is_type

from magpy_like.synthesis.shared_graphs import _MODES
from magpy_like.torch_interop.current_gpu import current_gpu

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_READ_MODES = [read_mode for read_mode in _MODES if read_mode is not current_gpu]
"""Reads of the modes that all graphs rely on; few ask for the current GPU."""
_UNKNOWN = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)


class Promise:
    """The form of a graph's example inputs, with which later inputs are compared."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self._forms = [_form(example) for example in examples]
        self._modes = [read_mode() for read_mode in _READ_MODES]
        symbolic = [n for _, numbers in self._forms for n in numbers if isinstance(n, _SYMBOLIC)]
        self._env = symbolic[0].node.shape_env if symbolic else None

    def find_violation(self, inputs: Sequence[Any]) -> str | None:
        """Describes the first input that differs from its example; None if there is none."""
        modes = [read_mode() for read_mode in _READ_MODES]
        if modes != self._modes:
            return f"torch's modes are {modes}, not {self._modes}"
        values: dict[Any, Any] = {}
        pairs = []
        for i, ((kind, numbers), value) in enumerate(zip(self._forms, inputs, strict=True)):
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
        return None if self._env is None else self._find_violated_guard(values)

    def _find_violated_guard(self, values: dict[Any, Any]) -> str | None:
        """Describes a guard or range of the graph's shape environment that the values violate.

        Unbacked symbols are ignored: operators check their values at run time.
        """
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
    """The form of an input, and its numbers: value, or sizes and strides."""
    if not isinstance(value, torch.Tensor):
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}.get(type(value))
        kind = kind or type(value)
        return (kind,), (value,) if issubclass(kind, (int, float)) else ()
    kind = value.dtype, value.device, value.requires_grad, value.layout, value.dim()
    if value.layout is not torch.strided:
        return kind, tuple(value.shape)
    return kind, (*value.shape, *value.stride())

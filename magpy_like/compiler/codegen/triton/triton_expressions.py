"""Names, numbers, types and index expressions in Triton's language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from magpy_like.compiler.codegen.common.kernel_plan import IndexPrinter

TYPE = {
    torch.bool: "tl.int1", torch.uint8: "tl.uint8", torch.int8: "tl.int8",
    torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64",
    torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16", torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}  # fmt: skip

#: Accumulation types: small types are reduced in 32 bits, which threads can exchange.
ACCUMULATED = dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.int32)

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "logical_and": "&", "logical_or": "|",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip

#: Functions of CUDA's math library, which eager's kernels call too.
LIBDEVICE = {
    name: name
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt", "sin", "cos", "tan",
        "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
        "erfc", "lgamma", "floor", "ceil", "trunc", "pow", "copysign", "nextafter", "hypot",
        "fmod", "fma",
    )
} | {"round": "nearbyint"}  # fmt: skip


class Name(str):
    """The name of a value in the source, and the axes it varies along.

    ``dtype`` is set for a literal, whose type Triton would otherwise infer from its context.
    """

    axes: frozenset[str]
    dtype: torch.dtype | None

    def __new__(cls, text: str, axes: frozenset[str], dtype: torch.dtype | None = None) -> Name:
        name = super().__new__(cls, text)
        name.axes, name.dtype = axes, dtype
        return name

    def typed(self, rank: int) -> str:
        """The value as a block of a definite type."""
        if self.dtype is None:
            return str(self)
        return f"tl.full({[1] * rank}, {self!s}, {TYPE[self.dtype]})"


def print_number(value: Any, dtype: torch.dtype) -> str:
    """A Python number as a literal; integers wrap around."""
    if dtype == torch.bool:
        return "1" if value else "0"
    if dtype.is_floating_point:
        if value != value:
            return 'float("nan")'
        if value in (float("inf"), float("-inf")):
            return f'float("{"-" if value < 0 else ""}inf")'
        return repr(float(value))
    bits = dtype.itemsize * 8
    low = 0 if dtype == torch.uint8 else -(2 ** (bits - 1))
    return str((int(value) - low) % 2**bits + low)


def identity(kind: str, dtype: torch.dtype) -> str:
    """The neutral element of a reduction or scan."""
    if kind in ("sum", "any"):
        return print_number(0, dtype)
    if kind == "prod":
        return print_number(1, dtype)
    low = kind in ("max", "fmax", "argmax", "logsumexp")
    if dtype.is_floating_point:
        return print_number(float("-inf") if low else float("inf"), dtype)
    info = torch.iinfo(dtype)
    return print_number(info.min if low else info.max, dtype)


def as_operand(parts: Sequence[str]) -> str:
    """The operand of a reduction or scan: one block, or a tuple of several."""
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def neutral_elements(kind: str, dtype: torch.dtype) -> list[str]:
    """The neutral element of each part of a reduction's state."""
    if kind == "welford":
        return ["0.0", "0.0", "0.0"]
    if kind in ("argmax", "argmin"):
        return [identity(kind, dtype), str(2**63 - 1)]
    return [identity(kind, dtype)]


print_index = IndexPrinter("Triton", "{} // {}", "prelude.{}", "prelude.{}")

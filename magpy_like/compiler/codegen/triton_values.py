"""Names, numbers, types and index expressions in Triton's language."""

from __future__ import annotations

from typing import Any

import torch

from magpy_like.compiler import indexing
from magpy_like.compiler.errors import Unsupported
from magpy_like.compiler.indexing import Expr

TYPE = {
    torch.bool: "tl.int1", torch.uint8: "tl.uint8", torch.int8: "tl.int8",
    torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64",
    torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16", torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}  # fmt: skip

#: Small types are reduced in 32 bits, which threads can exchange.
ACCUMULATED = dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.int32)

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "logical_and": "&", "logical_or": "|",
    "logical_xor": "!=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip

#: Functions of CUDA's mathematical library, which eager's kernels call too.
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
    """What a value is called in the source, and the axes it varies along.

    ``dtype`` is set for a literal, whose type the source must otherwise infer.
    """

    axes: frozenset[str]
    dtype: torch.dtype | None

    def __new__(cls, text: str, axes: frozenset[str], dtype: torch.dtype | None = None) -> Name:
        name = super().__new__(cls, text)
        name.axes, name.dtype = axes, dtype
        return name

    def typed(self, rank: int) -> str:
        """The same as a block whose type does not depend on what is beside it."""
        if self.dtype is None:
            return str(self)
        return f"tl.full({[1] * rank}, {self!s}, {TYPE[self.dtype]})"


def number(value: Any, dtype: torch.dtype) -> str:
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
    """The neutral element of a reduction."""
    if kind in ("sum", "any"):
        return number(0, dtype)
    if kind == "prod":
        return number(1, dtype)
    low = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return number(float("-inf") if low else float("inf"), dtype)
    info = torch.iinfo(dtype)
    return number(info.min if low else info.max, dtype)


def print_index(e: Expr) -> str:
    """An index expression over loop variables and sizes."""
    if e.is_Integer:
        return str(int(e))
    if e.is_Symbol:
        return str(e.name)
    if e.is_Add:
        return "(" + " + ".join(print_index(a) for a in e.args) + ")"
    if e.is_Mul:
        return "(" + " * ".join(print_index(a) for a in e.args) + ")"
    if e.is_Pow and e.exp.is_Integer and e.exp > 0:
        return "(" + " * ".join([print_index(e.base)] * int(e.exp)) + ")"
    name = type(e).__name__
    args = [print_index(a) for a in e.args] if not e.is_Pow else []
    if name in ("Div", "CleanDiv", "IntTrueDiv"):
        return f"({args[0]} // {args[1]})"
    if isinstance(e, indexing.Mod):
        return f"({args[0]} % {args[1]})"
    if name == "FloorDiv":
        return f"prelude.int_floordiv({args[0]}, {args[1]})"
    if name in ("Mod", "PythonMod"):
        return f"prelude.int_remainder({args[0]}, {args[1]})"
    if name == "ModularIndexing":
        return f"prelude.int_remainder(prelude.int_floordiv({args[0]}, {args[1]}), {args[2]})"
    if name in ("Max", "Min"):
        result = args[0]
        for a in args[1:]:
            result = f"prelude.{name.lower()}imum({result}, {a})"
        return result
    raise Unsupported("a size expression", f"{e} has no Triton form")

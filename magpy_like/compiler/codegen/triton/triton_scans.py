"""Scans in Triton: along a block, continued from block to block of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from magpy_like.compiler.codegen.triton.triton_expressions import (
    ACCUMULATED,
    TYPE,
    Name,
    as_operand,
    identity,
)
from magpy_like.compiler.ir.ops import Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.triton.triton_kernel import TritonKernel

#: Scan -> the prelude's function that combines two elements.
RUNNING = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum",
    "logsumexp": "log_add_exp", "argmax": "greater_last", "argmin": "less_last",
}  # fmt: skip


class Scans:
    """The scans of one kernel."""

    def __init__(self, printer: TritonKernel) -> None:
        self._printer = printer
        self._carried: dict[Value, list[Name]] = {}  # scan -> its state after earlier blocks

    def declare_carry(self, v: Value) -> None:
        """Declare a scan's state before the first block of a row."""
        printer, (kind, value, *_) = self._printer, v.args
        axes = printer.level_axes("outer")
        wide = ACCUMULATED.get(value.dtype, value.dtype)
        starts = [(identity(kind, wide), wide)]
        if kind in ("argmax", "argmin"):
            starts.append(("-1", torch.int64))
        self._carried[v] = [
            printer.define(f"tl.full({printer.shape(axes)}, {start}, {TYPE[dtype]})", axes)
            for start, dtype in starts
        ]

    def print_scan(self, v: Value, names: Sequence[Name]) -> Name:
        """Print a scan along the block, continuing the carried state; returns its result.

        Elements past the end of the row need no neutral value: nothing follows them.
        """
        printer, (kind, *values) = self._printer, v.args
        axes = printer.level_axes("inner")
        wide = [ACCUMULATED.get(value.dtype, value.dtype) for value in values]
        shape = printer.shape(axes)
        parts = [
            f"tl.broadcast_to({name.typed(printer.rank)}.to({TYPE[dtype]}), {shape})"
            for name, dtype in zip(names, wide, strict=True)
        ]
        line, block, combine = printer.lines.line, as_operand(parts), f"prelude.{RUNNING[kind]}"
        found = [printer.fresh_name(axes) for _ in parts]
        results = ", ".join(found)
        line(f"{results} = tl.associative_scan({block}, {printer.rank - 1}, {combine})")
        carried = self._carried.get(v)
        if carried is None and kind == "sum" and v.dtype.is_floating_point:
            line(f"{found[0]} += 0.0")  # a sum starts from 0.0, which turns -0.0 into 0.0
        elif carried is not None:
            before = ", ".join(carried)
            whole = printer.reduce_block(block, len(parts), RUNNING[kind])
            line(f"{results} = {combine}({before}, {results})")
            line(f"{before} = {combine}({before}, {', '.join(whole)})")
        result = found[-1]
        return result if wide[-1] == v.dtype else printer.define(
            f"{result}.to({TYPE[v.dtype]})", axes)  # fmt: skip

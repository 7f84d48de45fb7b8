"""Conversion of float16 rows in C++ kernels, a block of elements at a time.

GCC by itself does not vectorise conversions between float16 and float32. So contiguous loads and
stores of float16 go through arrays of float32, converted before and after the vector loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import Node
from magpy_like.compiler.codegen.cpp.cpp_expressions import print_index
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.cpp.cpp_kernel import CppKernel

#: Elements converted at once: few enough for the core to forward stores to loads.
HALF_BLOCK_ELEMENTS = 256

Access = tuple[str, str, Expr]  # "load" or "store", buffer, index


class HalfBlocks:
    """The float16 accesses of one kernel that are converted block by block."""

    def __init__(self, printer: CppKernel) -> None:
        self._printer = printer
        self._elements: dict[Access, str] = {}  # access in the open block -> float32 element

    def find(self, nodes: Sequence[Node], loop: Symbol) -> list[Access]:
        """The unmasked float16 loads and stores of ``nodes`` that are contiguous along ``loop``."""
        kernel = self._printer.kernel
        if not self._printer.is_plain:
            return []
        found: dict[Access, None] = {}
        for node in nodes:
            for v in node.body.values:
                if v.op not in ("load", "store") or v.outer:
                    continue
                buffer, index, mask_or_mode = *v.args[:2], v.args[-1]
                form = index_arithmetic.coefficients(index, kernel.ranges)
                if (
                    kernel.dtypes[buffer] == torch.float16
                    and mask_or_mode is None
                    and form is not None
                    and form[0].get(loop) == 1
                    and not index.free_symbols & set(node.body.indirect)
                    and buffer not in self._printer.locals
                    and buffer not in kernel.removed
                    and not (v.op == "load" and kernel.forward.get(buffer) == "value")
                ):
                    found[v.op, buffer, index] = None
        return list(found)

    def open(self, nodes: Sequence[Node], loop: Symbol, begin: str, end: str) -> None:
        """Convert the loads of ``loop`` from ``begin`` to ``end``, at most a block of elements."""
        line = self._printer.lines.line
        for op, buffer, index in self.find(nodes, loop):
            name = self._printer.fresh("wide")
            line(f"alignas(64) f32 {name}[{HALF_BLOCK_ELEMENTS}];")
            if op == "load":
                first = _first_element(buffer, index, loop, begin)
                line(f"widen_row({name}, &{first}, {end} - {begin});")
            self._elements[op, buffer, index] = f"{name}[{loop.name} - {begin}]"

    def close(self, loop: Symbol, begin: str, end: str) -> None:
        """Convert the stores of ``loop`` from ``begin`` to ``end``."""
        for (op, buffer, index), element in self._elements.items():
            if op == "store":
                first = _first_element(buffer, index, loop, begin)
                name = element.partition("[")[0]
                self._printer.lines.line(f"narrow_row(&{first}, {name}, {end} - {begin});")
        self._elements = {}

    def element(self, op: str, buffer: str, index: Expr) -> str | None:
        """The float32 element of an access in the open block, if it is one."""
        return self._elements.get((op, buffer, index))


def _first_element(buffer: str, index: Expr, loop: Symbol, begin: str) -> str:
    start = sympy.S.Zero if begin == "0" else sympy.Symbol(begin, integer=True)
    return f"{buffer}[{print_index(index.xreplace({loop: start}))}]"

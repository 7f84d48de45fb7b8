"""Streaming (non-temporal) stores in C++ kernels: stores that bypass the caches.

Such a store does not read the cache line that it overwrites, and leaves the caches to other data.
The elements of a strip are collected in an aligned array and stored as one cache line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import Node
from magpy_like.compiler.codegen.cpp.cpp_expressions import CTYPE, print_index
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.cpp.cpp_kernel import CppKernel

#: Elements of a strip: a cache line of float32.
STRIP_ELEMENTS = 16
#: Bytes of a kernel's memory traffic from which its results would evict everything else.
MIN_STREAMING_BYTES = 24 * 2**20

Store = tuple[str, Expr]  # buffer, index


class StreamingStores:
    """The streaming stores of one kernel."""

    def __init__(self, printer: CppKernel) -> None:
        self._printer = printer
        self._strips: dict[Store, str] = {}  # store of the strip being printed -> array
        self._lane = ""  # position in the strip of the element being printed

    def find(self, nodes: Sequence[Node], loop: Symbol) -> list[Store]:
        """The stores of ``nodes``, contiguous along ``loop``, to be made streaming stores."""
        kernel = self._printer.kernel
        if self._printer.traffic < MIN_STREAMING_BYTES or not self._printer.is_plain:
            return []
        read = {b for n in kernel.nodes() for b in n.reads if kernel.forward.get(b) != "value"}
        found = []
        for node in nodes:
            for v in node.body.of("store"):
                buffer, index = v.args[:2]
                form = index_arithmetic.coefficients(index, kernel.ranges)
                if (
                    form is not None
                    and form[0].get(loop) == 1
                    and not v.outer
                    and buffer not in read
                    and buffer not in kernel.removed
                    and kernel.dtypes[buffer].itemsize > 1
                    and kernel.dtypes[buffer] != torch.float16
                ):
                    found.append((buffer, index))
        return found

    def print_strip(
        self, stores: Sequence[Store], loop: Symbol, begin: str, element: Callable[[], None]
    ) -> None:
        """Print a strip of ``loop`` from ``begin`` on, with these stores as streaming stores.

        ``element`` prints the loop body.
        """
        printer = self._printer
        line, first = printer.lines.line, sympy.Symbol(begin, integer=True)
        for buffer, index in stores:
            name = self._strips[buffer, index] = printer.fresh("strip")
            line(f"alignas(64) {CTYPE[printer.kernel.dtypes[buffer]]} {name}[{STRIP_ELEMENTS}];")
        self._lane = printer.fresh("lane")
        line(printer.simd_pragma())
        line(f"for (i64 {self._lane} = 0; {self._lane} < {STRIP_ELEMENTS}; ++{self._lane}) {{")
        printer.lines.indent()
        line(f"const i64 {loop.name} = {begin} + {self._lane};")
        element()
        printer.close()
        for buffer, index in stores:
            target = f"{buffer}[{print_index(index.xreplace({loop: first}))}]"
            line(f"stream(&{target}, {self._strips.pop((buffer, index))});")

    def element(self, buffer: str, index: Expr) -> str | None:
        """The strip's element for a store, if it is a streaming store being printed."""
        name = self._strips.get((buffer, index))
        return None if name is None else f"{name}[{self._lane}]"

    def print_fence(self) -> None:
        """Before threads synchronise: make streaming stores visible to the others."""
        if self._printer.traffic >= MIN_STREAMING_BYTES:
            self._printer.lines.line("streamed();")

"""The order in which a thread visits the rows of a reduction in C++."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Node, Phase
from magpy_like.compiler.codegen.cpp.cpp_expressions import print_index
from magpy_like.compiler.codegen.cpp.cpp_kernel import CppKernel
from magpy_like.compiler.codegen.cpp.cpp_prefetch import (
    PREFETCH_DISTANCE_BYTES,
    LoopPositions,
    LoopStrides,
)
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr

#: Rows of each half, at least, between the prefetched row and the one being computed.
MIN_ROWS_AHEAD = 3


@dataclass(frozen=True)
class RowOrder:
    """Rows in memory order, ``shared`` among threads or all in one."""

    printer: CppKernel
    shared: bool

    def open(self) -> None:
        """Open the loops over rows; a block for a single thread if there is just one row."""
        kernel, line = self.printer.kernel, self.printer.lines.line
        xs = kernel.xs
        if self.shared and xs:
            many = f" collapse({len(xs)})" if len(xs) > 1 else ""
            line(f"#pragma omp for{many} schedule(static)")
        elif self.shared:
            line("#pragma omp single")
            line("{")
            self.printer.lines.indent()
        for v in xs:
            self.printer.open_loop(v)

    def close(self) -> None:
        """Close the scopes of :meth:`open`."""
        xs = self.printer.kernel.xs
        self.printer.close(len(xs) if xs or not self.shared else 1)

    def declare_next_row(self) -> None:
        """Declare ``next``: the next row of the innermost loop, else this row again.

        ``ready`` is then the number of that row among all rows, or -1.
        """
        line, x = self.printer.lines.line, self.printer.kernel.xs[-1]
        line(f"const bool follows = {x.name} + 1 < {print_index(self.printer.kernel.ranges[x])};")
        line(f"const i64 next = {x.name} + follows;")
        line(f"ready = follows ? {print_index(self.row_number())} + 1 : -1;")

    def row_number(self) -> Expr:
        """The number of the row among all rows."""
        xs, ranges = self.printer.kernel.xs, self.printer.kernel.ranges
        return index_arithmetic.flatten(list(xs), [ranges[x] for x in xs])

    def open_next_row(self) -> None:
        """Open a scope in which loads address the next row."""
        self.printer.lines.line("{")
        self.printer.lines.indent()
        self.printer.lines.line(f"const i64 {self.printer.kernel.xs[-1].name} = next;")

    def prefetch_next(self, phase: Phase, strip: str, count: int) -> None:
        """Prefetch ``count`` elements from ``strip`` on that ``phase`` will read of rows after the
        next row."""
        loop = self.printer.kernel.rs[-1]
        self.open_next_row()
        self.printer.prefetcher.prefetch(phase.inner, loop, strip, count, phase.inner, late=1)
        self.printer.close()


class HalvesOrder(RowOrder):
    """A thread alternates between the two halves of its rows, so that memory latencies overlap.

    *Measured* on two cores of an Intel processor: reading 28 MiB took 1.17 ms from one place at a
    time in each thread, and 1.09 ms from two; cross entropy of it 1.38 ms and 1.23 ms.
    """

    def open(self) -> None:
        kernel, line = self.printer.kernel, self.printer.lines.line
        (x,) = kernel.xs
        line(f"const Halves halves({print_index(kernel.ranges[x])});")
        line("for (i64 turn = 0; turn < halves.count; ++turn) {")
        self.printer.lines.indent()
        line(f"const i64 {x.name} = halves.row(turn);")

    def declare_next_row(self) -> None:
        line = self.printer.lines.line
        line("const bool follows = turn + 1 < halves.count;")
        line("const i64 next = halves.row(turn + follows);")
        line("ready = follows ? next : -1;")

    def prefetch_next(self, phase: Phase, strip: str, count: int) -> None:
        """Prefetch half a row in each half; the next iteration prefetches the other halves."""
        kernel, line = self.printer.kernel, self.printer.lines.line
        (x,), loop = kernel.xs, kernel.rs[-1]
        extent = kernel.ranges[loop]
        ahead = max(
            MIN_ROWS_AHEAD, PREFETCH_DISTANCE_BYTES // (2 * 4 * self.printer.hint(extent)) + 1
        )
        line(f"const i64 later = halves.first + turn / 2 + {ahead};")
        line(f"const i64 part = (turn % 2 * {print_index(extent)} + {strip}) / 2;")
        later, half, part = (
            sympy.Symbol(name, integer=True) for name in ("later", "halves.half", "part")
        )

        def positions(node: Node, width: int, steps: LoopStrides) -> list[LoopPositions]:
            if not steps.get(x):
                return []
            return [{x: row, loop: part} for row in (later, later + half)]

        self.printer.prefetcher.prefetch_at(phase.inner, loop, positions, str(count // 2))

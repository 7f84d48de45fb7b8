"""Software pipelining of rows in C++: the next row's extrema while this row is computed.

A phase that only compares waits for memory, and the phase after it waits for the extremum of the
whole row, as in a softmax. So the second phase of one row also runs the first phase of the next.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from magpy_like.compiler.codegen.common.kernel_plan import Node, Phase, split_levels
from magpy_like.compiler.codegen.cpp.cpp_expressions import CTYPE, identity, print_index
from magpy_like.compiler.codegen.cpp.cpp_prefetch import MIN_PREFETCH_BYTES, PREFETCH_DISTANCE_BYTES
from magpy_like.compiler.codegen.cpp.cpp_reduction import Parts
from magpy_like.compiler.codegen.cpp.cpp_row_order import HalvesOrder, RowOrder
from magpy_like.compiler.codegen.cpp.cpp_streaming import STRIP_ELEMENTS
from magpy_like.compiler.codegen.cpp.cpp_strips import LANE_ACCUMULATORS, UNROLLED_STRIPS
from magpy_like.compiler.ir.ops import EXPENSIVE, Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.cpp.cpp_row_reduction import Rows


class RowPipeline:
    """The pipelined rows of one kernel, and the prefetch of later rows."""

    def __init__(self, printer: Rows) -> None:
        self._printer = printer
        self._next: dict[Value, Parts] = {}  # reduction of the first phase -> the next row's
        self._next_lanes: dict[Value, list[str]] = {}

    @functools.cached_property
    def is_active(self) -> bool:
        """True if the first phase finds extrema of a short enough row, and the second computes."""
        printer, kernel = self._printer, self._printer.kernel
        first, second = (*kernel.phases, None, None)[:2]
        if not printer.shared or not kernel.xs or first is None or second is None:
            return False
        own = {b for node in kernel.nodes() for b in node.writes}
        values = [v for node in first.inner for v in split_levels(node.body)[0]]
        row = printer.hint(kernel.size(kernel.rs))
        reductions = [v for node in first.inner for v in node.body.of("reduction")]
        return (
            printer.strips.are_possible(first)
            and self._busiest_phase is second
            and all(v.args[0] in ("max", "min", "fmax") for v in reductions)
            and not any(v.op in EXPENSIVE or v.op == "store" for v in values)
            and not any(node.reads & own for node in first.inner)
            and 4 * row * len(first.inner) <= MIN_PREFETCH_BYTES // 4
        )

    @functools.cached_property
    def _busiest_phase(self) -> Phase | None:
        """The phase of strips with most computation per element.

        It prefetches the rows to come, so that memory latency overlaps with computation.
        """

        def work(phase: Phase) -> int:
            values = [v for node in phase.inner for v in split_levels(node.body)[0]]
            return sum(8 if v.op in EXPENSIVE else 1 for v in values)

        phases = filter(self._printer.strips.are_possible, self._printer.kernel.phases)
        return max(phases, key=work, default=None)

    @functools.cached_property
    def order(self) -> RowOrder:
        """The order of rows: short rows of a single loop come from two halves of memory in turn,
        if memory latency matters."""
        printer, kernel = self._printer, self._printer.kernel
        row = 4 * printer.hint(kernel.size(kernel.rs[-1:]))
        halves = (
            self.is_active and printer.prefetcher.is_needed and row < 2 * PREFETCH_DISTANCE_BYTES
        )
        kind = HalvesOrder if halves and len(kernel.xs) == 1 else RowOrder
        return kind(printer, printer.shared)

    def prefetch_strip(self, phase: Phase, strip: str) -> None:
        """Prefetch the memory of later strips, of the same row or of the next."""
        printer, phases = self._printer, self._printer.kernel.phases
        first, *_ = phases
        loop, count = printer.kernel.rs[-1], UNROLLED_STRIPS * STRIP_ELEMENTS
        if self.is_active and phase is first:
            return  # except for a thread's first row, the second phase prefetches it
        if self.is_active and phase is phases[1]:
            self.order.prefetch_next(first, strip, count)
        rows_of: list[Node] = []
        if phase is self._busiest_phase:
            rows_of = [node for other in phases for node in other.inner]
        late = int(phase is not first)
        printer.prefetcher.prefetch(phase.inner, loop, strip, count, rows_of, late)

    def declare(self) -> None:
        """Before the loop over rows: the next row's extrema."""
        if self.is_active:
            self._next = self._printer.accumulators(self._printer.kernel.phases[0], "")
            self._printer.lines.line("i64 ready = -1;  // the row that these are of")

    def reduce_phase(self, phase: Phase, accumulators: dict[Value, Parts]) -> None:
        """Print the reductions of a phase, pipelined where it is one of the first two."""
        printer, phases = self._printer, self._printer.kernel.phases
        if self.is_active and phase is phases[0]:
            self._reduce_unless_ready(phase, accumulators)
        elif self.is_active and phase is phases[1]:
            self._begin_next_row()
            printer.print_row_reductions(phase, accumulators)
            self._end_next_row()
        else:
            printer.print_row_reductions(phase, accumulators)

    def _reduce_unless_ready(self, phase: Phase, accumulators: dict[Value, Parts]) -> None:
        line = self._printer.lines.line
        line(f"if (ready == {print_index(self.order.row_number())}) {{")
        self._printer.lines.indent()
        for v, parts in accumulators.items():
            line(f"{parts[0][0]} = {self._next[v][0][0]};")
        self._printer.lines.indent(-1)
        line("} else {")
        self._printer.lines.indent()
        self._printer.print_row_reductions(phase, accumulators)
        self._printer.close()

    def _begin_next_row(self) -> None:
        """Declare the lane accumulators of the next row."""
        self.order.declare_next_row()
        for v, parts in self._next.items():
            _, dtype, kind = parts[0]
            names = [self._printer.fresh("lanes") for _ in range(UNROLLED_STRIPS)]
            self._next_lanes[v] = names
            declared = ", ".join(f"{name}({identity(kind, dtype)})" for name in names)
            self._printer.lines.line(f"{LANE_ACCUMULATORS[kind].format(CTYPE[dtype])} {declared};")

    def _end_next_row(self) -> None:
        for v, parts in self._next.items():
            first, *others = self._next_lanes[v]
            for name in others:
                self._printer.lines.line(f"{first}.join({name});")
            self._printer.lines.line(f"{parts[0][0]} = {first}.result();")

    def print_strip(
        self, phase: Phase, k: int, begin: str, count: str | None = None, seen: str | None = None
    ) -> None:
        """In the second phase: the same strip of the next row, for the first phase, into the
        ``k``-th lane accumulators."""
        first, *others = self._printer.kernel.phases
        if not self.is_active or phase is not others[0]:
            return
        self.order.open_next_row()
        lanes = {v: names[k] for v, names in self._next_lanes.items()}
        self._printer.strips.print_strip(first, self._next, {}, lanes, begin, count, seen)
        self._printer.close()

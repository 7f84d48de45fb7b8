"""Split reductions across memory rows in C++: the rows are shared among threads."""

from __future__ import annotations

from collections.abc import Callable

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Phase
from magpy_like.compiler.codegen.common.recomputation import (
    Producers,
    producers,
    recomputed_buffers,
    recomputed_values,
)
from magpy_like.compiler.codegen.cpp.cpp_column_reduction import Columns
from magpy_like.compiler.codegen.cpp.cpp_expressions import CTYPE, print_index
from magpy_like.compiler.codegen.cpp.cpp_kernel import MIN_PARALLEL_ELEMENTS, is_serial
from magpy_like.compiler.codegen.cpp.cpp_reduction import Parts
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import EXPENSIVE, Value

#: Rows from which a thread's part is long enough.
MIN_ROWS = 256
#: Columns up to which every thread can keep accumulators for all of them.
MAX_COLUMNS = 4096


def can_split_rows(kernel: Kernel, hint: Callable[[Expr], int]) -> bool:
    """True if the rows are to be shared among threads.

    They must be many, and values per element of earlier phases must be cheap to recompute.
    """
    values = [v for node in kernel.nodes() for v in node.body.values]
    return (
        len(kernel.xs) == 1
        and not kernel.messages
        and not is_serial(kernel)
        and all(v.op != "scan" for v in values)
        and hint(kernel.ranges[_longest_reduction_loop(kernel, hint)]) >= MIN_ROWS
        and hint(kernel.size(kernel.xs)) <= MAX_COLUMNS
        and hint(kernel.size((*kernel.xs, *kernel.rs))) >= 4 * MIN_PARALLEL_ELEMENTS
        and _can_recompute_all(kernel)
    )


def _longest_reduction_loop(kernel: Kernel, hint: Callable[[Expr], int]) -> Symbol:
    return max(kernel.rs, key=lambda r: hint(kernel.ranges[r]))


def _can_recompute_all(kernel: Kernel) -> bool:
    producer = producers(kernel)
    return all(_can_recompute(kernel, buffer, producer) for buffer in kernel.scratch_rows())


def _can_recompute(kernel: Kernel, buffer: str, producer: Producers) -> bool:
    node, _ = producer[buffer]
    (written_in,) = (k for k, phase in enumerate(kernel.phases) if node in phase.inner)
    read = max(k for k, p in enumerate(kernel.phases) for n in p.inner if buffer in n.reads)
    written = {b for p in kernel.phases[:read] for n in (*p.inner, *p.outer) for b in n.writes}
    written -= {b for b, kind in kernel.forward.items() if kind == "outer"}  # kept
    return (
        written_in < read
        and not any(v.op in EXPENSIVE for v in recomputed_values(buffer, producer, kernel))
        and not recomputed_buffers(buffer, producer, kernel) & written - kernel.removed
    )


class SplitColumns(Columns):
    """Each thread reduces a part of the rows; parts are combined in a fixed order, so results do
    not depend on timing. Later phases recompute values per element."""

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        super().__init__(kernel, hint)
        self.tile = self.tile_width()
        self.recomputed = {
            b: producer for b, producer in producers(kernel).items() if b in kernel.removed
        }
        self._split_loop = _longest_reduction_loop(kernel, hint)
        self._outer = [b for b, kind in kernel.forward.items() if kind == "outer"]

    def print_body(self) -> None:
        kernel, line = self.kernel, self.lines.line
        (x,) = kernel.xs
        rows = print_index(kernel.ranges[self._split_loop])
        line(f"const i64 columns = {print_index(kernel.ranges[x])}, rows = {rows};")
        line("const i64 threads = m_minimum<i64>(omp_get_max_threads(), rows);")
        for b in self._outer:
            self._allocate(f"all_v_{b}", CTYPE[kernel.dtypes[b]], "columns")
        for phase in kernel.phases:
            self._print_phase(phase, x)
        for b in self._outer:
            line(f"free(all_v_{b});")

    def _allocate(self, name: str, ctype: str, count: str) -> None:
        bytes_ = f"({count} * sizeof({ctype}) + 63) / 64 * 64"
        self.lines.line(f"{ctype}* __restrict__ {name} = ({ctype}*)aligned_alloc(64, {bytes_});")

    def _print_phase(self, phase: Phase, x: Symbol) -> None:
        accumulators = self.name_accumulators(phase)
        kept = [(name, CTYPE[dtype]) for parts in accumulators.values() for name, dtype, _ in parts]
        for name, ctype in kept:
            self._allocate(f"all_{name}", ctype, "threads * columns")
        if phase.inner:
            self._reduce_parts(phase, x, accumulators)
        if self.has_column_results(phase):
            self._combine_parts(phase, x, accumulators)
        for name, _ in kept:
            self.lines.line(f"free(all_{name});")

    def _reduce_parts(self, phase: Phase, x: Symbol, accumulators: dict[Value, Parts]) -> None:
        """Print each thread's part of the rows, tile by tile."""
        line = self.lines.line
        line("#pragma omp parallel for schedule(static, 1) num_threads(threads)")
        self._open("thread", "threads")
        line("const i64 first = part_begin(rows, thread, threads);")
        line("const i64 last = part_begin(rows, thread + 1, threads);")
        self._open_tile(accumulators)
        self.print_column_loops(phase, x, accumulators, (self._split_loop, "first", "last"))
        if accumulators:
            self.open_lanes(x)
            for parts in accumulators.values():
                for name, *_ in parts:
                    line(f"all_{name}[thread * columns + {x.name}] = {name}[l];")
            self.close()
        self.close(2)

    def _combine_parts(self, phase: Phase, x: Symbol, accumulators: dict[Value, Parts]) -> None:
        self._open_tile(accumulators)
        if accumulators:
            self._open("thread", "threads")
            self.open_lanes(x)
            for parts in accumulators.values():
                self.merge(parts, "[l]", f"thread * columns + {x.name}")
            self.close(2)
        self.print_column_results(phase, x, accumulators)
        self.close()

    def _open_tile(self, accumulators: dict[Value, Parts]) -> None:
        line = self.lines.line
        self._open("start", "columns", self.tile)
        line(f"const i64 width = m_minimum<i64>({self.tile}, columns - start);")
        for b in self._outer:
            self.locals[b] = f"v_{b}"
            line(f"{CTYPE[self.kernel.dtypes[b]]}* __restrict__ v_{b} = all_v_{b} + start;")
        for parts in accumulators.values():
            self.declare_accumulator(parts, f"[{self.tile}]")

    def _open(self, name: str, end: str, step: int = 1) -> None:
        self.lines.line(f"for (i64 {name} = 0; {name} < {end}; {name} += {step}) {{")
        self.lines.indent()

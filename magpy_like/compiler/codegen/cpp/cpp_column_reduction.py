"""Reductions across memory rows in C++: memory is contiguous along the last outer loop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Phase, split_levels
from magpy_like.compiler.codegen.cpp.cpp_expressions import (
    CTYPE,
    CppEmitter,
    print_index,
)
from magpy_like.compiler.codegen.cpp.cpp_reduction import Parts, Reduction
from magpy_like.compiler.codegen.cpp.cpp_streaming import STRIP_ELEMENTS
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import EXPENSIVE, Value

#: Columns per tile.
MIN_TILE_COLUMNS, MAX_TILE_COLUMNS = 256, 1024
#: Outer iterations that occupy all threads without splitting the columns among them.
MIN_OUTER_ITERATIONS = 16
#: Bytes of the first-level cache for the accumulators of a tile.
TILE_STATE_BYTES = 16384
#: Rows accumulated at a time if they are cheap to compute.
UNROLLED_ROWS = 4
#: Operations per element of such a row.
MAX_LIGHT_OPERATIONS = 16


class Columns(Reduction):
    """A tile of columns keeps its accumulators in an array inside which the reduction loops run;
    ``l`` counts the columns of a tile."""

    columns = True
    _is_block_start = ""  # C++ condition: the first row of a block

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        super().__init__(kernel, hint)
        self.tile = MIN_TILE_COLUMNS if kernel.scratch_rows() else self.tile_width()

    def tile_width(self) -> int:
        """Columns of a tile: enough for long contiguous reads, with accumulators in the first-level
        cache."""
        kept = [v for node in self.kernel.nodes() for v in node.body.values
                if v.op in ("reduction", "scan")]  # fmt: skip
        outer = [b for b, kind in self.kernel.forward.items() if kind == "outer"]
        width = TILE_STATE_BYTES // (16 * (len(kept) + len(outer))) if kept else 0
        width = max(
            MIN_TILE_COLUMNS, min(width // MIN_TILE_COLUMNS * MIN_TILE_COLUMNS, MAX_TILE_COLUMNS)
        )
        extent = self.kernel.ranges[self.kernel.xs[-1]]
        return (
            min(width, -(-int(extent) // STRIP_ELEMENTS) * STRIP_ELEMENTS)
            if extent.is_Integer
            else width
        )

    def print_body(self) -> None:
        """Print tiles of the last outer loop."""
        kernel, line = self.kernel, self.lines.line
        x = kernel.xs[-1]
        extent = print_index(kernel.ranges[x])
        threads = f"clip<i64>(({extent} / omp_get_max_threads() + 15) / 16 * 16, 16, {self.tile})"
        shared = self.hint(kernel.size(kernel.xs[:-1])) >= MIN_OUTER_ITERATIONS
        line(f"const i64 tile = {self.tile if shared else threads};")
        line(f"#pragma omp parallel{self.parallel_clause(self.iteration_count())}")
        line("{")
        self.lines.indent()
        self.declare_flags()
        self.open_scratch()
        count = len(kernel.xs)
        line(f"#pragma omp for{f' collapse({count})' if count > 1 else ''} schedule(static)")
        for v in kernel.xs[:-1]:
            self.open_loop(v)
        line(f"for (i64 start = 0; start < {extent}; start += tile) {{")
        self.lines.indent()
        line(f"const i64 width = m_minimum<i64>(tile, {extent} - start);")
        self.declare_locals(scalar=False)
        for phase in kernel.phases:
            self._print_column_phase(phase, x)
        self.close(count)
        self.close_scratch()
        self.report_flags()
        self.close()

    def open_lanes(self, x: Symbol) -> None:
        """Open the vector loop over the columns of a tile."""
        self.lines.line(self.simd_pragma())
        self.lines.line("for (i64 l = 0; l < width; ++l) {")
        self.lines.indent()
        self.lines.line(f"const i64 {x.name} = start + l;")

    def _print_column_phase(self, phase: Phase, x: Symbol) -> None:
        accumulators: dict[Value, Parts] = {}
        if phase.inner:
            accumulators = self.accumulators(phase, f"[{self.tile}]")
            self.declare_scans(phase, f"[{self.tile}]")
            self.print_column_loops(phase, x, accumulators)
        self.print_column_results(phase, x, accumulators)

    def has_column_results(self, phase: Phase) -> bool:
        """True if the phase computes values once per column, after the rows."""
        return bool(phase.outer) or any(split_levels(n.body)[2] for n in phase.inner)

    def print_column_results(
        self, phase: Phase, x: Symbol, accumulators: dict[Value, Parts]
    ) -> None:
        """Print, column by column, the values that follow from a tile's reductions."""
        if self.has_column_results(phase):
            self.open_lanes(x)
            emitter = CppEmitter(self, "l")
            self.print_results(phase, emitter, accumulators, "l")
            for node in phase.outer:
                emitter.run(node.body, node.body.values)
            self.close()

    def print_column_loops(
        self, phase: Phase, x: Symbol, accumulators: dict[Value, Parts],
        limits: tuple[Symbol, str, str] | None = None,
    ) -> None:  # fmt: skip
        """Print the reduction loops of one tile; long sums go block by block, as in rows.

        ``limits``: (loop, begin, end) bounds one of the loops.
        """
        rs, ranges = self.kernel.rs, self.kernel.ranges
        bounds = {r: ("0", print_index(ranges[r])) for r in rs}
        if limits is not None:
            bounds[limits[0]] = limits[1:]
        parts = {
            v: self.fresh("part")
            for kind in ("sum", "welford")
            for v, variables in accumulators.items()
            if variables[0][2] == kind and variables[0][1].is_floating_point
        }
        block = self._block_rows(accumulators, parts)
        for r in rs[:-1]:
            self.open_loop(r, *bounds[r])
        begin, end = bounds[rs[-1]]
        whole = begin == "0"
        if block:
            self._open_block(accumulators, parts, block, begin, end)
            begin, end = "block", f"m_minimum<i64>(block + {block}, {end})"
        self._is_block_start = f"{rs[-1].name} == {begin}"
        inner = parts if block else {}
        self._print_row_loop(
            phase, x, accumulators, inner, (begin, end), whole, block or UNROLLED_ROWS
        )
        if block:
            self._merge_block(x, accumulators, parts, begin, end)
        self.close(len(rs) - 1)

    def _block_rows(self, accumulators: dict[Value, Parts], parts: dict[Value, str]) -> int:
        """Rows of the blocks that are reduced on their own; 0 for none."""
        rs = self.kernel.rs
        kinds = {accumulators[v][0][2] for v in parts}
        rows = self.hint(self.kernel.ranges[rs[-1]])
        if "welford" not in kinds and not (kinds and (rows > 16 or len(rs) > 1)):
            return 0
        # Sums of about as many terms as there are blocks.
        block = min(32, 1 << (rows.bit_length() // 2))
        # Rounding errors of squared differences grow with the rows of a block.
        return min(max(block, 16), 64) if "welford" in kinds else block

    def _open_block(
        self, accumulators: dict[Value, Parts], parts: dict[Value, str], block: int,
        begin: str, end: str,
    ) -> None:  # fmt: skip
        """Open the loop over blocks, and declare the variables of a block."""
        line = self.lines.line
        line(f"for (i64 block = {begin}; block < {end}; block += {block}) {{")
        self.lines.indent()
        for v, part in parts.items():
            ctype = CTYPE[v.args[1][0].dtype]
            if accumulators[v][0][2] == "sum":
                line(f"{ctype} {part}[{self.tile}] = {{}};")
            else:
                line(f"{ctype} {part}_from[{self.tile}] = {{}};")
                line(f"f64 {part}_off[{self.tile}] = {{}}, {part}_m2[{self.tile}] = {{}};")

    def _print_row_loop(
        self, phase: Phase, x: Symbol, accumulators: dict[Value, Parts], inner: dict[Value, str],
        bounds: tuple[str, str], whole: bool, step: int,
    ) -> None:  # fmt: skip
        """Print the loop over rows, ``step`` of them at most; ``whole``: it starts at row 0."""
        line, last = self.lines.line, self.kernel.rs[-1]
        begin, end = bounds
        at = begin
        if self._is_light(phase):
            # Several rows at a time keep the accumulators in registers.
            at = self.fresh(f"{last.name}_at")
            line(f"i64 {at} = {begin};")
            line(f"for (; {at} + {UNROLLED_ROWS} <= {end}; {at} += {UNROLLED_ROWS}) {{")
            self.lines.indent()
            self.open_lanes(x)
            for k in range(UNROLLED_ROWS):
                line("{")
                self.lines.indent()
                line(f"const i64 {last.name} = {at} + {k};")
                self.print_element(phase, accumulators, inner, "l")
                self.close()
            self.close(2)
        extent, several = self.kernel.ranges[last], UNROLLED_ROWS
        even = whole and extent.is_Integer and int(extent) % several == step % several == 0
        if at == begin or not even:
            self.open_loop(last, at, end)
            self.open_lanes(x)
            self.print_element(phase, accumulators, inner, "l")
            self.close(2)

    def _merge_block(
        self, x: Symbol, accumulators: dict[Value, Parts], parts: dict[Value, str],
        begin: str, end: str,
    ) -> None:  # fmt: skip
        """Merge the variables of a block into the accumulators of the tile."""
        line = self.lines.line
        self.open_lanes(x)
        for v, part in parts.items():
            names = ", ".join(f"{name}[l]" for name, *_ in accumulators[v])
            if accumulators[v][0][2] == "sum":
                line(f"{names} += {part}[l];")
            else:
                ends = ", ".join(f"{part}_{end_}[l]" for end_ in ("from", "off", "m2"))
                line(f"merge_shifted({names}, {ends}, {end} - {begin});")
        self.close(2)

    def _is_light(self, phase: Phase) -> bool:
        """True if a row is so cheap to compute that its memory traffic dominates."""
        values = [v for node in phase.inner for v in split_levels(node.body)[0]]
        return (
            self.hint(self.kernel.ranges[self.kernel.rs[-1]]) >= UNROLLED_ROWS
            and len(values) <= MAX_LIGHT_OPERATIONS
            and not any(v.op in EXPENSIVE or v.op in ("store", "scan") for v in values)
            and all(node.body.of("reduction") for node in phase.inner)
        )

    def accumulate_welford(
        self, part: str | None, value: str, dtype: torch.dtype, lane: str | None
    ) -> None:
        """Accumulate differences from the first element of the block, if it is finite.

        It is one of the elements whose spread is computed, so the differences are at most that much
        larger than the spread. They and their squares add up in float64, as eager's do: squares of
        float32 have twice its range.
        """
        line, distance, start = self.lines.line, self.fresh("d"), self.fresh("start")
        ctype = CTYPE[dtype]
        line(f"const {ctype} {start} = {value} - {value} == 0 ? {value} : 0;")
        line(f"{part}_from[{lane}] = {self._is_block_start} ? {start} : {part}_from[{lane}];")
        line(f"const f64 {distance} = f64({value}) - {part}_from[{lane}];")
        line(f"{part}_off[{lane}] += {distance};")
        line(f"{part}_m2[{lane}] = m_fma({distance}, {distance}, {part}_m2[{lane}]);")

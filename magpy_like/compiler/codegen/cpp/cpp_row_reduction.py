"""Reductions along memory rows in C++: the reduction loops are innermost and contiguous."""

from __future__ import annotations

from collections.abc import Callable

import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Phase
from magpy_like.compiler.codegen.cpp.cpp_expressions import (
    CTYPE,
    CppEmitter,
    clause,
    print_index,
    print_number,
)
from magpy_like.compiler.codegen.cpp.cpp_float16 import HALF_BLOCK_ELEMENTS
from magpy_like.compiler.codegen.cpp.cpp_kernel import is_serial
from magpy_like.compiler.codegen.cpp.cpp_reduction import Parts, Reduction
from magpy_like.compiler.codegen.cpp.cpp_row_pipeline import RowPipeline
from magpy_like.compiler.codegen.cpp.cpp_strips import Strips
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.ops import Value

#: Elements that Welford's reduction reads twice before it merges them.
WELFORD_BLOCK_ELEMENTS = 1024
#: Elements summed before their sum is added to the total: bounds the rounding error.
SUM_BLOCK_ELEMENTS = 512


class Rows(Reduction):
    """Shares the outer iterations among threads; each phase is a vector loop over the row, with
    OpenMP reductions or lane accumulators."""

    shared = True  # are outer iterations shared among threads?

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        super().__init__(kernel, hint)
        self.strips = Strips(self)
        self.pipeline = RowPipeline(self)
        self.block_begin = ""  # where the block being printed begins

    def print_body(self) -> None:
        kernel, line = self.kernel, self.lines.line
        shared = self.shared
        if shared:
            line(f"#pragma omp parallel{self.parallel_clause(self.iteration_count())}")
        line("{")
        self.lines.indent()
        self.declare_flags()
        self.open_scratch()
        self.pipeline.declare()
        self.pipeline.order.open()
        outer = CppEmitter(self)
        self.declare_locals(scalar=True)
        for phase in kernel.phases:
            if phase.inner:
                accumulators = self.accumulators(phase, "")
                self.pipeline.reduce_phase(phase, accumulators)
                self.print_results(phase, outer, accumulators)
            for node in phase.outer:
                outer.run(node.body, node.body.values)
        self.pipeline.order.close()
        self.close_scratch()
        self.report_flags()
        if shared:
            self.streams.print_fence()
        self.close()

    def print_row_reductions(self, phase: Phase, accumulators: dict[Value, Parts]) -> None:
        """Print the reductions of a phase over the whole row."""
        self.print_row_loops(phase, accumulators, None)

    def print_row_loops(
        self, phase: Phase, accumulators: dict[Value, Parts], bounds: tuple[str, str] | None
    ) -> None:
        """Print the reduction loops; ``bounds`` limits the first of them to a thread's part."""
        line, rs = self.lines.line, self.kernel.rs
        scans = self.declare_scans(phase, "")
        if not rs:
            line("{")
            self.lines.indent()
            self.print_element(phase, accumulators, {})
            self.close()
            return
        strips = self.strips.are_possible(phase)
        if strips:
            self.strips.absorb_powers(phase)
        flags = {} if strips else self._declare_nan_flags(accumulators)
        begin, end = self._open_outer_loops(bounds)
        opened = len(rs) - 1
        block = self._block_elements(phase, accumulators)
        if block:
            line(f"for (i64 block = {begin}; block < {end}; block += {block}) {{")
            self.lines.indent()
            begin, end = "block", f"m_minimum<i64>(block + {block}, {end})"
            opened += 1
        self.block_begin = begin
        inner, clauses = self._declare_parts(accumulators, strips)
        self.halves.open(phase.inner, rs[-1], begin, end)
        if strips:
            whole = bounds is None or len(rs) > 1
            self.strips.print_loop(phase, accumulators, inner, begin, end, whole)
        else:
            self._print_last_loop(phase, accumulators, inner, clauses, begin, end, scans)
        self.halves.close(rs[-1], begin, end)
        self._merge_parts(accumulators, inner, strips, begin, end)
        self.close(opened)
        for v, flag in flags.items():
            name, dtype, _ = accumulators[v][0]
            line(f"if ({flag}) {name} = {print_number(float('nan'), dtype)};")
            del self.nans[v]

    def _declare_nan_flags(self, accumulators: dict[Value, Parts]) -> dict[Value, str]:
        """Declare a flag for NaN seen by each extremum of floats.

        The processor's maximum ignores NaN, and is four times as fast as one that does not. So the
        test for NaN is separate, and its flag lives until all loops are done: an iteration of an
        outer reduction loop would reset it.
        """
        flags: dict[Value, str] = {}
        for v, parts in accumulators.items():
            _, dtype, kind = parts[0]
            if kind in ("max", "min") and dtype.is_floating_point:
                flags[v] = self.fresh("nan")
                self.lines.line(f"u32 {flags[v]} = 0;")
        self.nans.update(flags)
        return flags

    def _open_outer_loops(self, bounds: tuple[str, str] | None) -> tuple[str, str]:
        """Open all reduction loops except the last; its begin and end."""
        kernel = self.kernel
        *outer, last = kernel.rs
        begin, end = bounds or ("0", print_index(kernel.ranges[kernel.rs[0]]))
        for k, v in enumerate(outer):
            self.open_loop(v, *((begin, end) if k == 0 else ("0", None)))
        return ("0", print_index(kernel.ranges[last])) if outer else (begin, end)

    def _block_elements(self, phase: Phase, accumulators: dict[Value, Parts]) -> int:
        """Elements of the blocks that the last loop is split into; 0 for none."""
        extent = self.kernel.ranges[self.kernel.rs[-1]]
        kinds = {parts[0][2] for parts in accumulators.values()}
        long = self.hint(extent) > SUM_BLOCK_ELEMENTS
        block = SUM_BLOCK_ELEMENTS if "sum" in kinds and long else 0

        def fits(limit: int) -> bool:
            return extent.is_Integer and int(extent) <= limit

        if "welford" in kinds and not fits(WELFORD_BLOCK_ELEMENTS):
            block = WELFORD_BLOCK_ELEMENTS
        half = self.halves.find(phase.inner, self.kernel.rs[-1])
        if half and not fits(HALF_BLOCK_ELEMENTS):
            block = HALF_BLOCK_ELEMENTS
        return block

    def _declare_parts(
        self, accumulators: dict[Value, Parts], strips: bool
    ) -> tuple[dict[Value, str], list[str]]:
        """Declare the variables that a block is reduced into.

        Returns (reduction -> variable, OpenMP reduction clauses). Only sums of floats and Welford's
        reduction have a variable per block; others reduce into their accumulator.
        """
        inner: dict[Value, str] = {}
        clauses = []
        for v, parts in accumulators.items():
            name, dtype, kind = parts[0]
            ctype = CTYPE[v.args[1][0].dtype]
            if kind == "welford":
                part = self.fresh("part")
                if not strips:
                    self.lines.line(f"{ctype} {part} = 0;")
                self.lines.line(f"alignas(64) {ctype} {part}_kept[{WELFORD_BLOCK_ELEMENTS}];")
                inner[v] = part
                clauses.append(f" reduction(+:{part})")
            if len(parts) > 1:
                continue
            part = self.fresh("part") if kind == "sum" and dtype.is_floating_point else name
            if part != name:
                self.lines.line(f"{ctype} {part} = 0;")
            inner[v] = part
            clauses.append(f" reduction({clause(kind, dtype)}:{part})")
            if v in self.nans:
                clauses.append(f" reduction(|:{self.nans[v]})")
        return inner, clauses

    def _print_last_loop(
        self, phase: Phase, accumulators: dict[Value, Parts], inner: dict[Value, str],
        clauses: list[str], begin: str, end: str, scans: bool,
    ) -> None:  # fmt: skip
        """Print the innermost loop without strips."""
        last = self.kernel.rs[-1]
        serial = scans or is_serial(self.kernel)

        def element() -> None:
            self.print_element(phase, accumulators, inner)

        if not accumulators and not serial and not self.halves.find(phase.inner, last):
            pieces = len(self.kernel.rs) > 1
            self.print_vector_loop(phase.inner, last, begin, end, element, pieces=pieces)
            return
        indexed = any(parts[0][2] in ("argmax", "argmin") for parts in accumulators.values())
        if not indexed and not serial:
            self.lines.line(self.simd_pragma(clauses))
        self.open_loop(last, begin, end)
        element()
        self.close()

    def _merge_parts(
        self, accumulators: dict[Value, Parts], inner: dict[Value, str], strips: bool,
        begin: str, end: str,
    ) -> None:  # fmt: skip
        """Add the variables of a block to the accumulators of the row."""
        for v, part in inner.items():
            name, _, kind = accumulators[v][0]
            if kind == "welford" and not strips:
                total = ", ".join(n for n, *_ in accumulators[v])
                self.lines.line(f"merge_kept({total}, {part}, {part}_kept, {end} - {begin});")
            elif kind != "welford" and part != name:
                self.lines.line(f"{name} += {part};")

    # --- accumulation ----------------------------------------------------------------------------

    def accumulate(
        self, v: Value, parts: Parts, emitter: CppEmitter, part: str | None,
        lane: str | None,
    ) -> None:  # fmt: skip
        """As in every reduction, or into a strip."""
        if not self.strips.accumulate(v, emitter):
            super().accumulate(v, parts, emitter, part, lane)

    def accumulate_welford(
        self, part: str | None, value: str, dtype: torch.dtype, lane: str | None
    ) -> None:
        self.lines.line(f"{part} = {part} + {value};")
        self.lines.line(f"{part}_kept[{self.kernel.rs[-1].name} - {self.block_begin}] = {value};")


class SplitRows(Rows):
    """A split reduction along rows, where outer iterations are too few to share among threads.

    Each thread reduces a part of the first reduction loop. The parts are combined in thread order,
    so results do not depend on timing.
    """

    shared = False

    def print_row_reductions(self, phase: Phase, accumulators: dict[Value, Parts]) -> None:
        line, kernel = self.lines.line, self.kernel
        extent = print_index(kernel.ranges[kernel.rs[0]])
        threads = self.fresh("threads")
        line(f"const i64 {threads} = m_minimum<i64>(omp_get_max_threads(), {extent});")
        arrays: dict[str, str] = {}
        for parts in accumulators.values():
            for name, dtype, _ in parts:
                arrays[name] = f"all_{name}"
                line(f"{CTYPE[dtype]} all_{name}[{threads}];")
        line(f"#pragma omp parallel for schedule(static, 1) num_threads({threads})")
        line(f"for (i64 thread = 0; thread < {threads}; ++thread) {{")
        self.lines.indent()
        line(f"const i64 first = part_begin({extent}, thread, {threads});")
        line(f"const i64 last = part_begin({extent}, thread + 1, {threads});")
        for parts in accumulators.values():
            self.declare_accumulator(parts, "")
        self.print_row_loops(phase, accumulators, ("first", "last"))
        for name, array in arrays.items():
            line(f"{array}[thread] = {name};")
        self.streams.print_fence()
        self.close()
        line(f"for (i64 thread = 0; thread < {threads}; ++thread) {{")
        self.lines.indent()
        for parts in accumulators.values():
            self.merge(parts, "", "thread")
        self.close()

"""Reductions along memory rows in C++: the reduction loops are innermost and contiguous."""

from __future__ import annotations

import functools
from collections.abc import Callable

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import (
    Kernel,
    Node,
    Phase,
    dependencies,
    split_levels,
)
from magpy_like.compiler.codegen.cpp.cpp_expressions import (
    CTYPE,
    CppEmitter,
    clause,
    identity,
    print_index,
    print_number,
)
from magpy_like.compiler.codegen.cpp.cpp_float16 import HALF_BLOCK_ELEMENTS
from magpy_like.compiler.codegen.cpp.cpp_kernel import is_serial
from magpy_like.compiler.codegen.cpp.cpp_prefetch import MIN_PREFETCH_BYTES, PREFETCH_DISTANCE_BYTES
from magpy_like.compiler.codegen.cpp.cpp_reduction import Parts, Reduction
from magpy_like.compiler.codegen.cpp.cpp_row_order import HalvesOrder, RowOrder
from magpy_like.compiler.codegen.cpp.cpp_streaming import STRIP_ELEMENTS
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.ops import EXPENSIVE, Value

UNROLLED_STRIPS = (
    2  # strips at a time, each with accumulators of its own: an addition waits for the last
)
LANE_ACCUMULATORS = {
    "sum": "Sum<{}>",
    "powers": "PowerSum",
    "prod": "Product<{}>",
    "welford": "Spread",
    "max": "Extremum<{}, true>",
    "min": "Extremum<{}, false>",
    "fmax": "Largest<{}>",
    "argmax": "Place<{}, true>",
    "argmin": "Place<{}, false>",
}  # what holds an accumulator for each lane of a strip
WELFORD_BLOCK_ELEMENTS = (
    1024  # elements that Welford's reduction looks at twice before it merges them
)
SUM_BLOCK_ELEMENTS = (
    512  # elements summed before their sum is added to the total: bounds rounding error
)


class Rows(Reduction):
    """Outer iterations are shared among threads; each phase is a loop over the row, with OpenMP
    reductions in vector lanes."""

    shared = True  # are outer iterations shared among threads?
    _block_begin = ""  # where the block being printed begins
    _is_repeated = ""  # whether the lane being printed was in a strip before

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        super().__init__(kernel, hint)
        self._strip_elements: dict[Value, str] = {}  # reduction of strips -> where its element goes
        self._next_row: dict[Value, Parts] = {}  # reduction of the first phase -> the next row's
        self._next_row_lanes: dict[Value, list[str]] = {}
        self._exponents: dict[Value, Value] = {}  # sum that computes powers itself -> exponent

    def body(self) -> None:
        kernel, line = self.kernel, self.lines.line
        shared = self.shared
        if shared:
            line(f"#pragma omp parallel{self.parallel_clause(self.iteration_count())}")
        line("{")
        self.lines.indent()
        self.declare_flags()
        self.open_scratch()
        if self._pipelines_rows:
            self._next_row = self.accumulators(kernel.phases[0], "")
            line("i64 ready = -1;  // the row that these are of")
        self._row_order.open()
        outer = CppEmitter(self)
        self.declare_locals(scalar=True)
        for phase in kernel.phases:
            if phase.inner:
                self._row_phase(phase, outer)
            for node in phase.outer:
                outer.run(node.body, node.body.values)
        self._row_order.close()
        self.close_scratch()
        self.report_flags()
        if shared:
            self.streams.print_fence()
        self.close()

    def _row_phase(self, phase: Phase, outer: CppEmitter) -> None:
        """One loop over the row: accumulate, then what follows the reductions."""
        accumulators, phases = self.accumulators(phase, ""), self.kernel.phases
        if self._pipelines_rows and phase is phases[0]:
            self._reduce_unless_pipelined(phase, accumulators)
        elif self._pipelines_rows and phase is phases[1]:
            self._begin_next_row()
            self.reduce_row(phase, accumulators)
            self._end_next_row()
        else:
            self.reduce_row(phase, accumulators)
        self.after(phase, outer, accumulators)

    def reduce_row(self, phase: Phase, accumulators: dict[Value, Parts]) -> None:
        self.row_loops(phase, accumulators, None)

    def row_loops(
        self, phase: Phase, accumulators: dict[Value, Parts], bounds: tuple[str, str] | None
    ) -> None:
        """The loops over the reduction; ``bounds`` limits the first for a thread's part."""
        kernel, line = self.kernel, self.lines.line
        rs = kernel.rs
        scans = self.declare_scans(phase, "")
        if not rs:
            line("{")
            self.lines.indent()
            self.element(phase, accumulators, {})
            self.close()
            return
        begin, end = bounds or ("0", print_index(kernel.ranges[rs[0]]))
        last = rs[-1]
        wide = self.halves.find(phase.inner, last)
        strips = self._uses_strips(phase)
        if strips:
            self._exponents.update(_added_powers(phase))
            self.implied.update(v.args[1][0] for v in self._exponents)
        flags: dict[Value, str] = {}
        for v, parts in accumulators.items():
            _, dtype, kind = parts[0]
            if kind in ("max", "min") and dtype.is_floating_point and not strips:
                # The processor's maximum ignores NaN, and is four times as fast as one that
                # does not: so look for NaN apart, and until all loops are done, or the next round
                # of an outer one would forget it.
                flags[v] = self.fresh("nan")
                line(f"u32 {flags[v]} = 0;")
        self.nans.update(flags)
        opened = 0
        for k, v in enumerate(rs[:-1]):
            self.open_loop(v, *((begin, end) if k == 0 else ("0", None)))
            opened += 1
        if opened:
            begin, end = "0", print_index(kernel.ranges[last])
        kinds = {parts[0][2] for parts in accumulators.values()}
        indexed = bool(kinds & {"argmax", "argmin"})
        inner: dict[Value, str] = {}
        extent = kernel.ranges[last]
        block = (
            SUM_BLOCK_ELEMENTS if "sum" in kinds and self.hint(extent) > SUM_BLOCK_ELEMENTS else 0
        )
        if "welford" in kinds and not (extent.is_Integer and int(extent) <= WELFORD_BLOCK_ELEMENTS):
            block = WELFORD_BLOCK_ELEMENTS
        if wide and not (extent.is_Integer and int(extent) <= HALF_BLOCK_ELEMENTS):
            block = HALF_BLOCK_ELEMENTS
        if block:
            line(f"for (i64 block = {begin}; block < {end}; block += {block}) {{")
            self.lines.indent()
            begin, end = "block", f"m_minimum<i64>(block + {block}, {end})"
            opened += 1
        self._block_begin = begin
        clauses = []
        for v, parts in accumulators.items():
            name, dtype, kind = parts[0]
            if kind == "welford":
                part, ctype = self.fresh("part"), CTYPE[v.args[1][0].dtype]
                if not strips:
                    line(f"{ctype} {part} = 0;")
                line(f"alignas(64) {ctype} {part}_kept[{WELFORD_BLOCK_ELEMENTS}];")
                inner[v] = part
                clauses.append(f" reduction(+:{part})")
            if len(parts) > 1:
                continue
            part = self.fresh("part") if kind == "sum" and dtype.is_floating_point else name
            if part != name:
                line(f"{CTYPE[v.args[1][0].dtype]} {part} = 0;")
            inner[v] = part
            clauses.append(f" reduction({clause(kind, dtype)}:{part})")
            if v in flags:
                clauses.append(f" reduction(|:{flags[v]})")
        self.halves.open(phase.inner, last, begin, end)

        def element() -> None:
            self.element(phase, accumulators, inner)

        if strips:
            whole = bounds is None or len(rs) > 1
            self._strip_loop(phase, accumulators, inner, begin, end, whole)
        elif not accumulators and not scans and not wide and not is_serial(self.kernel):
            pieces = bool(opened) and len(rs) > 1
            self.vector_loop(phase.inner, last, begin, end, element, pieces=pieces)
        else:
            if not indexed and not scans and not is_serial(self.kernel):
                line(self.simd_pragma(clauses))
            self.open_loop(last, begin, end)
            element()
            self.close()
        self.halves.close(last, begin, end)
        for v, part in inner.items():
            name, dtype, kind = accumulators[v][0]
            if kind == "welford" and strips:
                continue
            if kind == "welford":
                total = ", ".join(n for n, *_ in accumulators[v])
                line(f"merge_kept({total}, {part}, {part}_kept, {end} - {begin});")
                continue
            if part != name:
                line(f"{name} += {part};")
        self.close(opened)
        for v, flag in flags.items():
            name, dtype, _ = accumulators[v][0]
            line(f"if ({flag}) {name} = {print_number(float('nan'), dtype)};")
            del self.nans[v]

    # --- strips ----------------------------------------------------------------------------------

    def _uses_strips(self, phase: Phase) -> bool:
        """Are the phase's reductions such as can be held lane by lane, and its rows long enough?"""
        bodies, loop = [node.body for node in phase.inner], self.kernel.rs[-1]
        checks = [v for body in bodies for v in split_levels(body)[0] if v.op == "check"]
        reductions = [v for body in bodies for v in body.of("reduction")]
        return (
            bool(reductions)
            and not checks
            and not any(body.of("scan") for body in bodies)
            and not self.halves.find(phase.inner, loop)
            and not is_serial(self.kernel)
            and self.hint(self.kernel.ranges[loop]) >= UNROLLED_STRIPS * STRIP_ELEMENTS
            and all(
                v.args[0] in LANE_ACCUMULATORS and v.args[1][0].dtype.itemsize == 4
                for v in reductions
            )
            and all(len(v.args[1]) == 1 or self.in_order(v) for v in reductions)
        )

    def _can_recompute_elements(self, phase: Phase) -> bool:
        """May the phase's elements be computed twice, and are there enough for a strip?

        What is written to memory may be what is read: a result can take its argument's place.
        """
        extent = self.kernel.ranges[self.kernel.rs[-1]]
        values = [v for node in phase.inner for v in split_levels(node.body)[0]]
        written = {v.args[0] for v in values if v.op == "store"}
        read: set[str] = set()
        for v in values:
            if v.op == "load":
                read.add(v.args[0])
            if v.op == "store" and v.args[0] in read:
                return False
        reductions = [v for node in phase.inner for v in node.body.of("reduction")]
        return (
            extent.is_Integer
            and written <= self.kernel.removed
            and all(v.args[0] not in ("welford", "argmax", "argmin") for v in reductions)
        )

    @functools.cached_property
    def _prefetching_phase(self) -> Phase | None:
        """The phase that computes most per element, of those that can ask for the next rows:
        memory is then waited for while there is something to do."""

        def work(phase: Phase) -> int:
            values = [v for node in phase.inner for v in split_levels(node.body)[0]]
            return sum(8 if v.op in EXPENSIVE else 1 for v in values)

        return max(filter(self._uses_strips, self.kernel.phases), key=work, default=None)

    def _prefetch_strip(self, phase: Phase, strip: str) -> None:
        """Ask for what strips that come later read: those of the same row, or of the next."""
        first, *_ = self.kernel.phases
        loop, count = self.kernel.rs[-1], UNROLLED_STRIPS * STRIP_ELEMENTS
        if self._pipelines_rows and phase is first:
            return  # but for one row, another phase does this
        if self._pipelines_rows and phase is self.kernel.phases[1]:
            self._row_order.prefetch_next(first, strip, count)
        rows_of: list[Node] = []
        if phase is self._prefetching_phase:
            rows_of = [node for other in self.kernel.phases for node in other.inner]
        self.prefetcher.prefetch(
            phase.inner, loop, strip, count, rows_of, late=int(phase is not first)
        )

    def _strip_loop(
        self, phase: Phase, accumulators: dict[Value, Parts], inner: dict[Value, str],
        begin: str, end: str, whole: bool,
    ) -> None:  # fmt: skip
        """The loop over a row (its ``whole``, in blocks, or a part) as a loop over strips, with an
        accumulator for each of their lanes.

        (A compiler's own reductions have these too, but go through memory element by element
        before and after a row, which costs as much as a hundred elements.)
        """
        line, loop = self.lines.line, self.kernel.rs[-1]
        lanes: dict[Value, list[str]] = {}
        for v, parts in accumulators.items():
            dtype, kind = v.args[1][0].dtype, parts[0][2]
            lanes[v] = [self.fresh("lanes") for _ in range(UNROLLED_STRIPS)]
            # An extremum starts with what has been seen, and differences are from the mean of that.
            start = f"({parts[0][0]})" if kind in ("max", "min", "fmax") else ""
            start = "(1)" if kind == "prod" else start
            if len(parts) == 2:
                start = f"({identity(kind, dtype)})"
            if kind == "welford":
                total, _, count = (name for name, *_ in parts)
                start = f"({inner[v]}_from)"
                line(f"const f32 {inner[v]}_from = {count} > 0 ? f32({total} / {count}) : 0;")
            if v in self._exponents:
                kind = "powers"
            declared = ", ".join(f"{name}{start}" for name in lanes[v])
            line(f"{LANE_ACCUMULATORS[kind].format(CTYPE[dtype])} {declared};")
        computes = self._pipelines_rows and phase is self.kernel.phases[1]
        strip, together = self.fresh(f"{loop.name}_strip"), UNROLLED_STRIPS * STRIP_ELEMENTS
        extent = self.kernel.ranges[loop]
        fits = whole and extent.is_Integer and int(extent) % together == 0
        start = f"i64 {strip} = {begin}"
        if not fits:
            line(f"{start};")
        start = start if fits else ""
        line(f"for ({start}; {strip} + {together} <= {end}; {strip} += {together}) {{")
        self.lines.indent()
        self._prefetch_strip(phase, strip)
        for k in range(UNROLLED_STRIPS):
            own = {v: names[k] for v, names in lanes.items()}
            self._print_strip(phase, accumulators, inner, own, f"{strip} + {STRIP_ELEMENTS * k}")
            if computes:
                self._print_next_row_strip(k, f"{strip} + {STRIP_ELEMENTS * k}")
        self.close()
        if not fits and whole and self._can_recompute_elements(phase):
            # The last strips end where the row does: what was seen before counts as nothing.
            line(f"for (; {strip} < {end}; {strip} += {STRIP_ELEMENTS}) {{")
            self.lines.indent()
            last, seen = self.fresh("last"), self.fresh("seen")
            line(f"const i64 {last} = m_minimum<i64>({end} - {STRIP_ELEMENTS}, {strip});")
            line(f"const i64 {seen} = {strip} - {last};")
            own = {v: names[0] for v, names in lanes.items()}
            self._print_strip(phase, accumulators, inner, own, last, seen=seen)
            if computes:
                self._print_next_row_strip(0, last, seen=seen)
            self.close()
        elif not fits:
            line(f"for (; {strip} < {end}; {strip} += {STRIP_ELEMENTS}) {{")
            self.lines.indent()
            count = self.fresh("count")
            line(f"const i64 {count} = m_minimum<i64>({end} - {strip}, {STRIP_ELEMENTS});")
            own = {v: names[0] for v, names in lanes.items()}
            self._print_strip(phase, accumulators, inner, own, strip, count)
            if computes:
                self._print_next_row_strip(0, strip, count)
            self.close()
        for v, names in lanes.items():
            for name in names[1:]:
                line(f"{names[0]}.join({name});")
            parts, kind = accumulators[v], accumulators[v][0][2]
            if len(parts) == 2:
                best = ", ".join(name for name, *_ in parts)
                line(f"{names[0]}.merge_into({best}, {self._flat_position(begin)});")
                continue
            part = inner[v]
            if kind == "welford":
                total = ", ".join(name for name, *_ in accumulators[v])
                line(f"{names[0]}.merge_into({total}, {part}_kept, {end} - {begin});")
                continue
            direct = part == accumulators[v][0][0]
            sign = {"sum": "+=", "prod": "*="}.get(kind, "=") if direct else "="
            line(f"{part} {sign} {names[0]}.result();")

    def _flat_position(self, begin: str) -> str:
        """The flat position of the element at ``begin`` of the last loop."""
        *outer, last = self.kernel.rs
        at = [*outer, sympy.S.Zero if begin == "0" else sympy.Symbol(begin, integer=True)]
        sizes = [self.kernel.ranges[r] for r in (*outer, last)]
        return print_index(index_arithmetic.flatten(at, sizes))

    def _print_strip(
        self, phase: Phase, accumulators: dict[Value, Parts], inner: dict[Value, str],
        lanes: dict[Value, str], begin: str, count: str | None = None, seen: str | None = None,
    ) -> None:  # fmt: skip
        """The strip from ``begin``; or ``count`` elements of it, or all but ``seen`` of it."""
        line, loop = self.lines.line, self.kernel.rs[-1]
        rows: dict[Value, str] = {}
        for v, parts in accumulators.items():
            dtype, kind = v.args[1][0].dtype, parts[0][2]
            row, ctype = self.fresh("strip"), CTYPE[dtype]
            rows[v] = row
            if kind == "welford":
                line(f"{ctype}* {row} = {inner[v]}_kept + ({begin} - {self._block_begin});")
            else:
                line(f"alignas(64) {ctype} {row}[{STRIP_ELEMENTS}];")
            if count is not None:
                start = f"{inner[v]}_from" if kind == "welford" else self._neutral_element(v)
                line(f"for (i64 l = 0; l < {STRIP_ELEMENTS}; ++l) {rows[v]}[l] = {start};")
        lane = self.fresh("lane")
        self._strip_elements = {v: f"{row}[{lane}]" for v, row in rows.items()}
        self._is_repeated = f"{lane} < {seen}" if seen is not None else ""
        line("#pragma omp simd")
        line(f"for (i64 {lane} = 0; {lane} < {count or STRIP_ELEMENTS}; ++{lane}) {{")
        self.lines.indent()
        line(f"const i64 {loop.name} = {begin} + {lane};")
        self.element(phase, accumulators, inner)
        self.close()
        self._strip_elements, self._is_repeated = {}, ""
        for v, row in rows.items():
            which = (
                f", ({begin} - {self._block_begin}) / {STRIP_ELEMENTS}"
                if len(accumulators[v]) == 2
                else ""
            )
            line(f"{lanes[v]}.add({row}{which});")

    # --- the next row ----------------------------------------------------------------------------

    @functools.cached_property
    def _pipelines_rows(self) -> bool:
        """Are the extrema that the second phase starts from, as a softmax's does, to be found in
        the next row while this one's phase computes?

        A phase that only compares waits for memory, and what follows waits for its last element.
        """
        first, second = (*self.kernel.phases, None, None)[:2]
        if not self.shared or not self.kernel.xs or first is None or second is None:
            return False
        own = {b for node in self.kernel.nodes() for b in node.writes}
        values = [v for node in first.inner for v in split_levels(node.body)[0]]
        row = self.hint(self.kernel.size(self.kernel.rs))
        return (
            self._uses_strips(first)
            and self._prefetching_phase is second
            and all(v.args[0] in ("max", "min", "fmax")
                    for node in first.inner for v in node.body.of("reduction"))
            and not any(v.op in EXPENSIVE or v.op == "store" for v in values)
            and not any(node.reads & own for node in first.inner)
            and 4 * row * len(first.inner) <= MIN_PREFETCH_BYTES // 4
        )  # fmt: skip

    @functools.cached_property
    def _row_order(self) -> RowOrder:
        """Short rows of one loop are taken from two places, where memory is waited for."""
        row = 4 * self.hint(self.kernel.size(self.kernel.rs[-1:]))
        in_halves = (
            self._pipelines_rows and self.prefetcher.is_needed and row < 2 * PREFETCH_DISTANCE_BYTES
        )
        kind = HalvesOrder if in_halves and len(self.kernel.xs) == 1 else RowOrder
        return kind(self, self.shared)

    def _reduce_unless_pipelined(self, phase: Phase, accumulators: dict[Value, Parts]) -> None:
        line = self.lines.line
        line(f"if (ready == {print_index(self._row_order.row_number())}) {{")
        self.lines.indent()
        for v, parts in accumulators.items():
            line(f"{parts[0][0]} = {self._next_row[v][0][0]};")
        self.lines.indent(-1)
        line("} else {")
        self.lines.indent()
        self.reduce_row(phase, accumulators)
        self.close()

    def _begin_next_row(self) -> None:
        """Accumulators for the row that comes next."""
        self._row_order.declare_next_row()
        for v, parts in self._next_row.items():
            _, dtype, kind = parts[0]
            names = self._next_row_lanes[v] = [self.fresh("lanes") for _ in range(UNROLLED_STRIPS)]
            declared = ", ".join(f"{name}({identity(kind, dtype)})" for name in names)
            self.lines.line(f"{LANE_ACCUMULATORS[kind].format(CTYPE[dtype])} {declared};")

    def _end_next_row(self) -> None:
        for v, parts in self._next_row.items():
            first, *others = self._next_row_lanes[v]
            for name in others:
                self.lines.line(f"{first}.join({name});")
            self.lines.line(f"{parts[0][0]} = {first}.result();")

    def _print_next_row_strip(
        self, k: int, begin: str, count: str | None = None, seen: str | None = None
    ) -> None:
        """The same strip of the next row, for the first phase, into the ``k``-th accumulators."""
        self._row_order.open_next_row()
        lanes = {v: names[k] for v, names in self._next_row_lanes.items()}
        self._print_strip(self.kernel.phases[0], self._next_row, {}, lanes, begin, count, seen)
        self.close()

    # --- accumulation ----------------------------------------------------------------------------

    def accumulate(
        self, v: Value, parts: Parts, emitter: CppEmitter, part: str | None,
        lane: str | None,
    ) -> None:  # fmt: skip
        """As in every reduction; or into a strip."""
        if v not in self._strip_elements:
            super().accumulate(v, parts, emitter, part, lane)
            return
        value = emitter.names[self._exponents.get(v, v.args[1][0])]
        if self._is_repeated:
            value = f"{self._is_repeated} ? {self._neutral_element(v)} : {value}"
        self.lines.line(f"{self._strip_elements[v]} = {value};")

    def _neutral_element(self, v: Value) -> str:
        """What a lane is given that is no element."""
        return identity("max" if v in self._exponents else v.args[0], v.args[1][0].dtype)

    def accumulate_welford(
        self, part: str | None, value: str, dtype: torch.dtype, lane: str | None
    ) -> None:
        self.lines.line(f"{part} = {part} + {value};")
        self.lines.line(f"{part}_kept[{self.kernel.rs[-1].name} - {self._block_begin}] = {value};")


def _added_powers(phase: Phase) -> dict[Value, Value]:
    """The sums of powers that are wanted for nothing else: reduction -> exponent."""
    found: dict[Value, Value] = {}
    for node in phase.inner:
        for v in node.body.of("reduction"):
            power = v.args[1][0]
            users = [u for u in node.body.values if power in dependencies(u, node.body)]
            if v.args[0] == "sum" and power.op == "exp_addend" and users == [v]:
                found[v] = power.args[0]
    return found


class SplitRows(Rows):
    """Too few outer iterations to share: each thread takes a part of the reduction, and the parts
    are combined in a fixed order, so results do not depend on timing."""

    shared = False

    def reduce_row(self, phase: Phase, accumulators: dict[Value, Parts]) -> None:
        """Each thread reduces a part of the first loop; parts are combined in thread order."""
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
        self.row_loops(phase, accumulators, ("first", "last"))
        for name, array in arrays.items():
            line(f"{array}[thread] = {name};")
        self.streams.print_fence()
        self.close()
        line(f"for (i64 thread = 0; thread < {threads}; ++thread) {{")
        self.lines.indent()
        for parts in accumulators.values():
            self.merge(parts, "", "thread")
        self.close()

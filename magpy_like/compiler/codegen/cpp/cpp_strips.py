"""Strip loops in C++: reductions along a row, with an accumulator for each lane of a strip.

A strip is as many elements as a cache line of float32 holds. The compiler's own vector reductions
also have an accumulator per lane, but pass it through memory element by element before and after a
row, which costs as much as a hundred elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Phase, dependencies, split_levels
from magpy_like.compiler.codegen.cpp.cpp_expressions import (
    CTYPE,
    CppEmitter,
    identity,
    print_index,
)
from magpy_like.compiler.codegen.cpp.cpp_kernel import is_serial
from magpy_like.compiler.codegen.cpp.cpp_reduction import Parts
from magpy_like.compiler.codegen.cpp.cpp_streaming import STRIP_ELEMENTS
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.ops import Value

if TYPE_CHECKING:
    from magpy_like.compiler.codegen.cpp.cpp_row_reduction import Rows

#: Strips per iteration, each with accumulators of its own: an addition waits for the previous one.
UNROLLED_STRIPS = 2
#: Reduction -> the C++ class with an accumulator per lane, as a format of the element type.
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
}


class Strips:
    """The strip loops of one kernel."""

    def __init__(self, printer: Rows) -> None:
        self._printer = printer
        self._elements: dict[Value, str] = {}  # reduction -> element of the strip being printed
        self._is_repeated = ""  # C++ condition: the lane was in an earlier strip
        self._exponents: dict[Value, Value] = {}  # sum that computes powers itself -> exponent

    def are_possible(self, phase: Phase) -> bool:
        """True if all reductions of the phase have lane accumulators, and its rows are long."""
        bodies, loop = [node.body for node in phase.inner], self._printer.kernel.rs[-1]
        checks = [v for body in bodies for v in split_levels(body)[0] if v.op == "check"]
        reductions = [v for body in bodies for v in body.of("reduction")]
        length = self._printer.hint(self._printer.kernel.ranges[loop])
        return (
            bool(reductions)
            and not checks
            and not any(body.of("scan") for body in bodies)
            and not self._printer.halves.find(phase.inner, loop)
            and not is_serial(self._printer.kernel)
            and length >= UNROLLED_STRIPS * STRIP_ELEMENTS
            and all(
                v.args[0] in LANE_ACCUMULATORS and v.args[1][0].dtype.itemsize == 4
                for v in reductions
            )
            and all(
                len(v.args[1]) == 1 or self._printer.is_in_position_order(v) for v in reductions
            )
        )

    def absorb_powers(self, phase: Phase) -> None:
        """Let sums of powers that have no other use compute the powers themselves."""
        self._exponents.update(_summed_powers(phase))
        self._printer.implied.update(v.args[1][0] for v in self._exponents)

    def print_loop(
        self, phase: Phase, accumulators: dict[Value, Parts], inner: dict[Value, str],
        begin: str, end: str, whole: bool,
    ) -> None:  # fmt: skip
        """Print the last reduction loop from ``begin`` to ``end`` as a loop over strips.

        ``inner``: reduction -> the variable that its lanes are merged into. ``whole``: the loop
        covers a row (in blocks), not a thread's part of it.
        """
        printer = self._printer
        line, loop = printer.lines.line, printer.kernel.rs[-1]
        lanes = self._declare_lanes(accumulators, inner)
        strip, together = printer.fresh(f"{loop.name}_strip"), UNROLLED_STRIPS * STRIP_ELEMENTS
        extent = printer.kernel.ranges[loop]
        fits = whole and extent.is_Integer and int(extent) % together == 0
        start = f"i64 {strip} = {begin}"
        if not fits:
            line(f"{start};")
        start = start if fits else ""
        line(f"for ({start}; {strip} + {together} <= {end}; {strip} += {together}) {{")
        printer.lines.indent()
        printer.pipeline.prefetch_strip(phase, strip)
        for k in range(UNROLLED_STRIPS):
            own = {v: names[k] for v, names in lanes.items()}
            self.print_strip(phase, accumulators, inner, own, f"{strip} + {STRIP_ELEMENTS * k}")
            printer.pipeline.print_strip(phase, k, f"{strip} + {STRIP_ELEMENTS * k}")
        printer.close()
        if not fits:
            own = {v: names[0] for v, names in lanes.items()}
            self._print_rest(phase, accumulators, inner, own, strip, end, whole)
        self._merge_lanes(accumulators, inner, lanes, begin, end)

    def _declare_lanes(
        self, accumulators: dict[Value, Parts], inner: dict[Value, str]
    ) -> dict[Value, list[str]]:
        """Declare the lane accumulators; reduction -> their names, one per unrolled strip."""
        line, fresh = self._printer.lines.line, self._printer.fresh
        lanes: dict[Value, list[str]] = {}
        for v, parts in accumulators.items():
            dtype, kind = v.args[1][0].dtype, parts[0][2]
            lanes[v] = [fresh("lanes") for _ in range(UNROLLED_STRIPS)]
            # An extremum starts from the extremum so far.
            start = f"({parts[0][0]})" if kind in ("max", "min", "fmax") else ""
            start = "(1)" if kind == "prod" else start
            if len(parts) == 2:
                start = f"({identity(kind, dtype)})"
            if kind == "welford":
                # Differences are from the mean so far.
                total, _, count = (name for name, *_ in parts)
                start = f"({inner[v]}_from)"
                line(f"const f32 {inner[v]}_from = {count} > 0 ? f32({total} / {count}) : 0;")
            if v in self._exponents:
                kind = "powers"
            declared = ", ".join(f"{name}{start}" for name in lanes[v])
            line(f"{LANE_ACCUMULATORS[kind].format(CTYPE[dtype])} {declared};")
        return lanes

    def _print_rest(
        self, phase: Phase, accumulators: dict[Value, Parts], inner: dict[Value, str],
        lanes: dict[Value, str], strip: str, end: str, whole: bool,
    ) -> None:  # fmt: skip
        """The strips at the end of a row: the last one shortened, or moved to end with the row."""
        printer, line = self._printer, self._printer.lines.line
        line(f"for (; {strip} < {end}; {strip} += {STRIP_ELEMENTS}) {{")
        printer.lines.indent()
        begin: str
        count: str | None = None
        seen: str | None = None
        if whole and self._can_recompute_elements(phase):
            # Lanes that an earlier strip has covered contribute the neutral element.
            begin, seen = printer.fresh("last"), printer.fresh("seen")
            line(f"const i64 {begin} = m_minimum<i64>({end} - {STRIP_ELEMENTS}, {strip});")
            line(f"const i64 {seen} = {strip} - {begin};")
        else:
            begin, count = strip, printer.fresh("count")
            line(f"const i64 {count} = m_minimum<i64>({end} - {strip}, {STRIP_ELEMENTS});")
        self.print_strip(phase, accumulators, inner, lanes, begin, count, seen)
        printer.pipeline.print_strip(phase, 0, begin, count, seen)
        printer.close()

    def _can_recompute_elements(self, phase: Phase) -> bool:
        """True if elements of the phase may be computed twice, and rows are as long as a strip.

        Memory that the phase writes may be memory that it reads: a result can take its argument's
        place.
        """
        kernel = self._printer.kernel
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
            kernel.ranges[kernel.rs[-1]].is_Integer
            and written <= kernel.removed
            and all(v.args[0] not in ("welford", "argmax", "argmin") for v in reductions)
        )

    def _merge_lanes(
        self, accumulators: dict[Value, Parts], inner: dict[Value, str],
        lanes: dict[Value, list[str]], begin: str, end: str,
    ) -> None:  # fmt: skip
        """Reduce the lanes into the reductions' variables."""
        line = self._printer.lines.line
        for v, names in lanes.items():
            for name in names[1:]:
                line(f"{names[0]}.join({name});")
            parts, kind = accumulators[v], accumulators[v][0][2]
            variables = ", ".join(name for name, *_ in parts)
            part = inner.get(v)
            if len(parts) == 2:
                line(f"{names[0]}.merge_into({variables}, {self._flat_position(begin)});")
            elif kind == "welford":
                line(f"{names[0]}.merge_into({variables}, {part}_kept, {end} - {begin});")
            else:
                direct = part == parts[0][0]
                sign = {"sum": "+=", "prod": "*="}.get(kind, "=") if direct else "="
                line(f"{part} {sign} {names[0]}.result();")

    def _flat_position(self, begin: str) -> str:
        """The flat position of the element at ``begin`` of the last loop."""
        kernel = self._printer.kernel
        *outer, last = kernel.rs
        at = [*outer, sympy.S.Zero if begin == "0" else sympy.Symbol(begin, integer=True)]
        sizes = [kernel.ranges[r] for r in (*outer, last)]
        return print_index(index_arithmetic.flatten(at, sizes))

    def print_strip(
        self, phase: Phase, accumulators: dict[Value, Parts], inner: dict[Value, str],
        lanes: dict[Value, str], begin: str, count: str | None = None, seen: str | None = None,
    ) -> None:  # fmt: skip
        """Print the strip from ``begin``: all of it, its first ``count`` elements, or all but its
        first ``seen`` elements. ``lanes``: reduction -> lane accumulator."""
        printer = self._printer
        line, loop = printer.lines.line, printer.kernel.rs[-1]
        rows: dict[Value, str] = {}
        for v, parts in accumulators.items():
            dtype, kind = v.args[1][0].dtype, parts[0][2]
            row, ctype = printer.fresh("strip"), CTYPE[dtype]
            rows[v] = row
            if kind == "welford":
                line(f"{ctype}* {row} = {inner[v]}_kept + ({begin} - {printer.block_begin});")
            else:
                line(f"alignas(64) {ctype} {row}[{STRIP_ELEMENTS}];")
            if count is not None:
                start = f"{inner[v]}_from" if kind == "welford" else self._neutral_element(v)
                line(f"for (i64 l = 0; l < {STRIP_ELEMENTS}; ++l) {rows[v]}[l] = {start};")
        lane = printer.fresh("lane")
        self._elements = {v: f"{row}[{lane}]" for v, row in rows.items()}
        self._is_repeated = f"{lane} < {seen}" if seen is not None else ""
        line("#pragma omp simd")
        line(f"for (i64 {lane} = 0; {lane} < {count or STRIP_ELEMENTS}; ++{lane}) {{")
        printer.lines.indent()
        line(f"const i64 {loop.name} = {begin} + {lane};")
        printer.print_element(phase, accumulators, inner)
        printer.close()
        self._elements, self._is_repeated = {}, ""
        for v, row in rows.items():
            strip = f", ({begin} - {printer.block_begin}) / {STRIP_ELEMENTS}"
            line(f"{lanes[v]}.add({row}{strip if len(accumulators[v]) == 2 else ''});")

    def accumulate(self, v: Value, emitter: CppEmitter) -> bool:
        """Write a reduction's element into the strip being printed; False if there is none."""
        if v not in self._elements:
            return False
        value = emitter.names[self._exponents.get(v, v.args[1][0])]
        if self._is_repeated:
            value = f"{self._is_repeated} ? {self._neutral_element(v)} : {value}"
        self._printer.lines.line(f"{self._elements[v]} = {value};")
        return True

    def _neutral_element(self, v: Value) -> str:
        return identity("max" if v in self._exponents else v.args[0], v.args[1][0].dtype)


def _summed_powers(phase: Phase) -> dict[Value, Value]:
    """The sums of powers whose only use is the sum: reduction -> exponent."""
    found: dict[Value, Value] = {}
    for node in phase.inner:
        for v in node.body.of("reduction"):
            power = v.args[1][0]
            users = [u for u in node.body.values if power in dependencies(u, node.body)]
            if v.args[0] == "sum" and power.op == "exp_addend" and users == [v]:
                found[v] = power.args[0]
    return found

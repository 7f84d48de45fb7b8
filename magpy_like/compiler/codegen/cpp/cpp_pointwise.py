"""Pointwise kernels in C++: every iteration on its own."""

from __future__ import annotations

from collections.abc import Callable

import sympy

from magpy_like.compiler.codegen.common import interior_loops
from magpy_like.compiler.codegen.common.kernel_plan import Kernel, loop_invariants
from magpy_like.compiler.codegen.cpp.cpp_expressions import (
    CTYPE,
    CppEmitter,
    print_index,
)
from magpy_like.compiler.codegen.cpp.cpp_kernel import MIN_PARALLEL_ELEMENTS, CppKernel
from magpy_like.compiler.codegen.cpp.cpp_row_gather import RowGather, find_row_gathers, row_start
from magpy_like.compiler.codegen.cpp.cpp_streaming import STRIP_ELEMENTS
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol

TILE_BLOCK = 64  # elements along each side of a block of tiles

StridedLoad = tuple[str, Expr, Expr]


class Pointwise(CppKernel):
    """A vector along the last loop, in square tiles where one buffer is contiguous along another
    loop than the rest."""

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        super().__init__(kernel, hint)
        self._tiles: dict[tuple[str, Expr], str] = {}  # transposed load -> array of tiles
        self._tile_loops = "", ""
        self._gathers: dict[
            RowGather, str
        ] = {}  # load at positions of a table -> what was found out

    def body(self) -> None:
        xs, line = self.kernel.xs, self.lines.line
        emitter = CppEmitter(self)
        self.declare_locals(scalar=True)
        if not xs:
            self.declare_flags()
            self._element(emitter)
            self.report_flags()
            return
        condition = self.parallel_clause(self.iteration_count())
        if len(xs) == 1:
            self.declare_flags()  # shared: the loop itself reduces them
            self._hoist(emitter)
            line(f"#pragma omp parallel{condition}")
            line("{")
            self.lines.indent()
            self._simd_loop(emitter, share=f" schedule(static){self.flag_clause()}")
            self.streams.print_fence()
            self.close()
            self.report_flags()
            return
        self._find_gathers()
        line(f"#pragma omp parallel{condition}")
        line("{")
        self.lines.indent()
        self.declare_flags()
        self._nest(emitter)
        self.report_flags()
        self.streams.print_fence()
        self.close()

    def _element(self, emitter: CppEmitter) -> None:
        for node in self.kernel.nodes():
            emitter.run(node.body, node.body.values)

    def _strided_loop(self) -> Symbol | None:
        """The loop, not the last, that some buffer is contiguous in while the last one jumps."""
        *outer, last = self.kernel.xs
        if self.work < MIN_PARALLEL_ELEMENTS:
            return None
        for node in self.kernel.nodes():
            for v in node.body.values:
                if v.op not in ("load", "store"):
                    continue
                form = index_arithmetic.coefficients(v.args[1], self.kernel.xs)
                if form is None or form[0].get(last, 0) in (0, 1):
                    continue
                for x in outer:
                    if form[0].get(x) == 1 and self.hint(self.kernel.ranges[x]) >= STRIP_ELEMENTS:
                        return x
        return None

    def _nest(self, emitter: CppEmitter) -> None:
        """Several loops, the last one a vector."""
        *outer, last = self.kernel.xs
        strided, line = self._strided_loop(), self.lines.line
        outer = [v for v in outer if v is not strided]
        count = len(outer) + (2 if strided is not None else 0)
        line(f"#pragma omp for{f' collapse({count})' if count > 1 else ''} schedule(static)")
        for v in outer:
            self.open_loop(v)
        if strided is None:
            self._vector(emitter)
        else:
            self._blocks(emitter, strided, last)
        self.close(len(outer))

    # --- where a buffer is contiguous along another loop ---------------------------------------

    def _blocks(self, emitter: CppEmitter, strided: Symbol, last: Symbol) -> None:
        """Blocks of tiles, a tile being a cache line each way.

        What jumps along the vector is transposed in registers, a tile at a time, rather than
        gathered; and a row of tiles before it is used, so that memory is read and written in pieces
        as long as a block. A block touches few enough pages for their addresses to stay known; the
        next one is fetched meanwhile, since the processor foresees no such jumps.
        """
        line = self.lines.line
        self._tile_loops = strided.name, last.name
        for v in (strided, last):
            extent, start = print_index(self.kernel.ranges[v]), f"{v.name}_block"
            line(f"for (i64 {start} = 0; {start} < {extent}; {start} += {TILE_BLOCK})")
        line("{")
        self.lines.indent()
        for v in (strided, last):
            extent, start = print_index(self.kernel.ranges[v]), f"{v.name}_block"
            line(f"const i64 {v.name}_end = m_minimum<i64>({start} + {TILE_BLOCK}, {extent});")
        self._open_tiles(strided)
        self._transpose(strided, last)
        begin = f"{strided.name}_tile"
        self.open_loop(strided, begin, f"{begin} + {strided.name}_n")
        self._hoist(emitter)
        self._open_tiles(last)
        begin = f"{last.name}_tile"
        line(f"if ({last.name}_n == {STRIP_ELEMENTS}) {{")  # a vector, and no loop
        self.lines.indent()
        nodes = self.kernel.nodes()
        streamed = self.streams.find(nodes, last)
        self.streams.print_strip(
            streamed, last, begin, lambda: self._element(emitter.in_new_scope())
        )
        self.lines.indent(-1)
        line("} else {")
        self.lines.indent()
        self._simd_loop(emitter, begin, f"{begin} + {last.name}_n")
        self.close(5)

    def _open_tiles(self, v: Symbol) -> None:
        """A loop over the tiles of a block along ``v``."""
        line, tile, end = self.lines.line, f"{v.name}_tile", f"{v.name}_end"
        line(f"for (i64 {tile} = {v.name}_block; {tile} < {end}; {tile} += {STRIP_ELEMENTS}) {{")
        self.lines.indent()
        line(f"const i64 {v.name}_n = m_minimum<i64>({end} - {tile}, {STRIP_ELEMENTS});")

    def _contiguous(self, strided: Symbol, last: Symbol, along: Symbol) -> list[StridedLoad]:
        """What is read of inputs that are contiguous ``along`` one of two loops and jump along the
        other: (buffer, index, step of the jump)."""
        found: dict[StridedLoad, None] = {}
        (other,) = {strided, last} - {along}
        for node in self.kernel.nodes():
            for v in node.body.of("load"):
                buffer, index, mask = v.args
                form = index_arithmetic.coefficients(index, self.kernel.xs)
                if (
                    buffer in self.kernel.inputs
                    and mask is None
                    and form is not None
                    and form[0].get(along) == 1
                    and form[0].get(other, 0) not in (0, 1)
                    and not index.free_symbols & set(node.body.indirect)
                ):
                    found[buffer, index, form[0][other]] = None
        return list(found)

    def _fetch_block(self, strided: Symbol, last: Symbol) -> None:
        """Ask for rows of the next block along ``last``, of all that is read by rows of it: as
        many as this tile is a part of its block."""
        if not self.prefetcher.is_needed:
            return
        start = {v: sympy.Symbol(f"{v.name}_block", integer=True) for v in (strided, last)}
        tiles = [f"({v.name}_tile - {v.name}_block)" for v in (strided, last)]
        rows = TILE_BLOCK // (TILE_BLOCK // STRIP_ELEMENTS) ** 2
        first = sympy.Symbol("row", integer=True)
        self.lines.line(
            f"const i64 row = ({TILE_BLOCK // STRIP_ELEMENTS} * {tiles[0]} + {tiles[1]}) "
            f"/ {STRIP_ELEMENTS} * {rows};"
        )
        for along, other in ((last, strided), (strided, last)):
            place = {**start, last: start[last] + TILE_BLOCK}
            place[other] += first
            for buffer, index, step in self._contiguous(strided, last, along):
                at = print_index(index.xreplace(place))
                shape = f"<{rows}, {TILE_BLOCK}>"
                self.lines.line(f"fetch_rows{shape}(&{buffer}[{at}], {print_index(step)});")

    def _transpose(self, strided: Symbol, last: Symbol) -> None:
        """Copy into a row of tiles what is contiguous along ``strided``."""
        line = self.lines.line
        start = {v: sympy.Symbol(f"{v.name}_tile", integer=True) for v in (strided, last)}
        transposed = self._contiguous(strided, last, strided)
        if not transposed and not self.prefetcher.is_needed:
            return
        for buffer, index, _ in transposed:
            name = self._tiles[buffer, index] = self.fresh("tiles")
            ctype = CTYPE[self.kernel.dtypes[buffer]]
            line(f"alignas(64) {ctype} {name}[{STRIP_ELEMENTS * TILE_BLOCK}];")
        self._open_tiles(last)
        self._fetch_block(strided, last)
        for buffer, index, step in transposed:
            name, at = self._tiles[buffer, index], print_index(index.xreplace(start))
            line(
                f"transpose({name} + {STRIP_ELEMENTS} * ({last.name}_tile - {last.name}_block), "
                f"&{buffer}[{at}], "
                f"{print_index(step)}, {strided.name}_n, {last.name}_n);"
            )
        self.close()

    def load_source(self, buffer: str, index: Expr, lane: str | None) -> str:
        """As for every kernel; or the element of a tile."""
        name = self._tiles.get((buffer, index))
        if name is None:
            return super().load_source(buffer, index, lane)
        strided, last = self._tile_loops
        tile = f"{last}_tile - {last}_block + {strided} - {strided}_tile"
        return f"{name}[{STRIP_ELEMENTS} * ({tile}) + {last} - {last}_tile]"

    # --- where rows are taken from at the same positions -----------------------------------------

    def _find_gathers(self) -> None:
        """Look at the positions, once for all rows; alike tables are looked at once."""
        kernel, line = self.kernel, self.lines.line
        rows = self.hint(kernel.size(kernel.xs[:-1]))
        if self._strided_loop() is not None:
            return
        found: dict[tuple[str, int], str] = {}
        for gather in find_row_gathers(kernel, kernel.xs[-1], rows):
            table, count = gather.table.args[0], int(kernel.ranges[kernel.xs[-1]])
            name = found.get((table, gather.extent))
            if name is None:
                name = found[table, gather.extent] = self.fresh("takings")
                line(f"Taking {name}[{-(-count // STRIP_ELEMENTS)}];")
                line(f"find_takings({name}, {table}, {count}, {gather.extent});")
            self._gathers[gather] = name

    def _gather_strips(self, emitter: CppEmitter) -> None:
        """The last loop, strip by strip."""
        line, last = self.lines.line, self.kernel.xs[-1]
        count, strip = int(self.kernel.ranges[last]), f"{last.name}_strip"
        whole = count // STRIP_ELEMENTS * STRIP_ELEMENTS
        nodes = self.kernel.nodes()

        def gathered() -> CppEmitter:
            """Prints an element with loads that find what was taken."""
            other = emitter.in_new_scope()
            places: dict[tuple[str, str], str] = {}
            for gather, found in self._gathers.items():
                row = row_start(gather, emitter)
                if (row, found) not in places:
                    name = places[row, found] = self.fresh("taken")
                    ctype = CTYPE[self.kernel.dtypes[gather.load.args[0]]]
                    line(f"alignas(64) {ctype} {name}[{STRIP_ELEMENTS}];")
                    line(f"take({name}, &{row}, {found}[{strip} / {STRIP_ELEMENTS}]);")
                other.hoisted[gather.load] = f"{places[row, found]}[{last.name} - {strip}]"
            return other

        if whole:
            line(f"for (i64 {strip} = 0; {strip} < {whole}; {strip} += {STRIP_ELEMENTS}) {{")
            self.lines.indent()
            element = gathered()
            self.streams.print_strip(
                self.streams.find(nodes, last),
                last,
                strip,
                lambda: self._element(element.in_new_scope()),
            )
            self.close()
        if count > whole:
            line("{")
            self.lines.indent()
            line(f"const i64 {strip} = {whole};")
            element = gathered()
            line(self.simd_pragma())
            self.open_loop(last, strip, str(count))
            self._element(element.in_new_scope())
            self.close(2)

    # --- the loop that is a vector -------------------------------------------------------------

    def _hoist(self, emitter: CppEmitter) -> None:
        """Compute before the last loop what is the same in all its iterations."""
        kernel, loop = self.kernel, self.kernel.xs[-1]
        if not index_arithmetic.is_nonnegative(kernel.ranges[loop] - 1):
            return  # it may not run at all
        bodies = [node.body for node in kernel.nodes()]
        emitter.hoist((body, loop_invariants(body, loop, kernel.inputs)) for body in bodies)

    def _simd_loop(
        self, emitter: CppEmitter, begin: str = "0", end: str | None = None, share: str = ""
    ) -> None:
        last = self.kernel.xs[-1]
        end = end if end is not None else print_index(self.kernel.ranges[last])
        self.vector_loop(
            self.kernel.nodes(),
            last,
            begin,
            end,
            lambda: self._element(emitter.in_new_scope()),
            share,
        )

    def _vector(self, emitter: CppEmitter) -> None:
        """The last loop; without masks where it is known what they are, as inside the borders of an
        image. For the rest of its iterations the loop is printed with them, as a lambda."""
        self._hoist(emitter)
        kernel, line = self.kernel, self.lines.line
        if self._gathers:
            self._gather_strips(emitter)
            return
        inside = interior_loops.find_interior(kernel, kernel.xs[-1], emitter.hoisted, self.hint)
        if inside is None or kernel.messages:
            self._simd_loop(emitter)
            return
        line("const auto masked = [=](i64 begin, i64 end) {")
        self.lines.indent()
        self._simd_loop(emitter, "begin", "end")
        self.lines.indent(-1)
        line("};")
        tests = [f"{'' if so else '!'}{emitter.hoisted[v]}" for v, so in inside.uniform.items()]
        extent = print_index(kernel.ranges[kernel.xs[-1]])
        line(f"if ({' & '.join(tests) or 'true'}) {{")
        self.lines.indent()
        begin, end = str(inside.begin), inside.end or extent
        if not kernel.ranges[kernel.xs[-1]].is_Integer:
            line(f"i64 inner = {begin}, outer = {extent};")
            line("if (inner > outer) inner = outer;")
            for edge in map(print_index, inside.ends):
                line(f"if (outer > {edge}) outer = {edge};")
            line("if (outer < inner) outer = inner;")
            begin, end = "inner", "outer"
        if begin != "0":
            line(f"masked(0, {begin});")
        self._simd_loop(emitter.assuming(inside.known), begin, end)
        if end != extent:
            line(f"masked({end}, {extent});")
        self.lines.indent(-1)
        line(f"}} else masked(0, {extent});")

"""Pointwise kernels in C++: loop nests of independent iterations."""

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

#: Elements along each side of a block of tiles.
TILE_BLOCK = 64

StridedLoad = tuple[str, Expr, Expr]


class Pointwise(CppKernel):
    """The last loop is the vector loop; square tiles where an access is contiguous along another
    loop."""

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        super().__init__(kernel, hint)
        self._tiles: dict[tuple[str, Expr], str] = {}  # transposed load -> array of tiles
        self._tile_loops = "", ""
        self._gathers: dict[RowGather, str] = {}  # gather -> its analysed positions

    def print_body(self) -> None:
        xs, line = self.kernel.xs, self.lines.line
        emitter = CppEmitter(self)
        self.declare_locals(scalar=True)
        if not xs:
            self.declare_flags()
            self._print_element(emitter)
            self.report_flags()
            return
        condition = self.parallel_clause(self.iteration_count())
        if len(xs) == 1:
            self.declare_flags()  # shared: the loop itself reduces them
            self._hoist(emitter)
            line(f"#pragma omp parallel{condition}")
            line("{")
            self.lines.indent()
            self._print_simd_loop(emitter, share=f" schedule(static){self.flag_clause()}")
            self.streams.print_fence()
            self.close()
            self.report_flags()
            return
        self._find_gathers()
        line(f"#pragma omp parallel{condition}")
        line("{")
        self.lines.indent()
        self.declare_flags()
        self._print_nest(emitter)
        self.report_flags()
        self.streams.print_fence()
        self.close()

    def _print_element(self, emitter: CppEmitter) -> None:
        for node in self.kernel.nodes():
            emitter.run(node.body, node.body.values)

    def _strided_loop(self) -> Symbol | None:
        """A loop, not the last, along which an access is contiguous that is strided
        along the last."""
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

    def _print_nest(self, emitter: CppEmitter) -> None:
        """Print several loops, the last one as a vector loop."""
        *outer, last = self.kernel.xs
        strided, line = self._strided_loop(), self.lines.line
        outer = [v for v in outer if v is not strided]
        count = len(outer) + (2 if strided is not None else 0)
        line(f"#pragma omp for{f' collapse({count})' if count > 1 else ''} schedule(static)")
        for v in outer:
            self.open_loop(v)
        if strided is None:
            self._print_vector(emitter)
        else:
            self._print_tile_blocks(emitter, strided, last)
        self.close(len(outer))

    # --- loop tiling and transposition ---------------------------------------------------------

    def _print_tile_blocks(self, emitter: CppEmitter, strided: Symbol, last: Symbol) -> None:
        """Print loop tiling: blocks of tiles, a tile being a cache line in each direction.

        Loads strided along the vector are transposed in registers, a tile at a time, rather than
        gathered; and a row of tiles in advance, so that memory is read and written in pieces as
        long as a block. A block touches few enough pages for the TLB. The next block is prefetched
        meanwhile, since the hardware prefetcher does not follow such strides.
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
        self._print_transpose(strided, last)
        begin = f"{strided.name}_tile"
        self.open_loop(strided, begin, f"{begin} + {strided.name}_n")
        self._hoist(emitter)
        self._open_tiles(last)
        begin = f"{last.name}_tile"
        line(f"if ({last.name}_n == {STRIP_ELEMENTS}) {{")  # a vector of fixed length, no loop
        self.lines.indent()
        nodes = self.kernel.nodes()
        streamed = self.streams.find(nodes, last)
        self.streams.print_strip(
            streamed, last, begin, lambda: self._print_element(emitter.in_new_scope())
        )
        self.lines.indent(-1)
        line("} else {")
        self.lines.indent()
        self._print_simd_loop(emitter, begin, f"{begin} + {last.name}_n")
        self.close(5)

    def _open_tiles(self, v: Symbol) -> None:
        """Open a loop over the tiles of a block along ``v``."""
        line, tile, end = self.lines.line, f"{v.name}_tile", f"{v.name}_end"
        line(f"for (i64 {tile} = {v.name}_block; {tile} < {end}; {tile} += {STRIP_ELEMENTS}) {{")
        self.lines.indent()
        line(f"const i64 {v.name}_n = m_minimum<i64>({end} - {tile}, {STRIP_ELEMENTS});")

    def _loads_contiguous_along(
        self, strided: Symbol, last: Symbol, along: Symbol
    ) -> list[StridedLoad]:
        """Unmasked loads of inputs contiguous ``along`` one of two loops and strided along the
        other.

        Returns (buffer, index, stride in the other loop).
        """
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

    def _prefetch_block(self, strided: Symbol, last: Symbol) -> None:
        """Prefetch a share of the rows of the next block along ``last``: the same share as this
        tile has of its block."""
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
            position = {**start, last: start[last] + TILE_BLOCK}
            position[other] += first
            for buffer, index, step in self._loads_contiguous_along(strided, last, along):
                at = print_index(index.xreplace(position))
                shape = f"<{rows}, {TILE_BLOCK}>"
                self.lines.line(f"fetch_rows{shape}(&{buffer}[{at}], {print_index(step)});")

    def _print_transpose(self, strided: Symbol, last: Symbol) -> None:
        """Copy the loads contiguous along ``strided`` into a row of transposed tiles."""
        line = self.lines.line
        start = {v: sympy.Symbol(f"{v.name}_tile", integer=True) for v in (strided, last)}
        transposed = self._loads_contiguous_along(strided, last, strided)
        if not transposed and not self.prefetcher.is_needed:
            return
        for buffer, index, _ in transposed:
            name = self._tiles[buffer, index] = self.fresh("tiles")
            ctype = CTYPE[self.kernel.dtypes[buffer]]
            line(f"alignas(64) {ctype} {name}[{STRIP_ELEMENTS * TILE_BLOCK}];")
        self._open_tiles(last)
        self._prefetch_block(strided, last)
        for buffer, index, step in transposed:
            name, at = self._tiles[buffer, index], print_index(index.xreplace(start))
            line(
                f"transpose({name} + {STRIP_ELEMENTS} * ({last.name}_tile - {last.name}_block), "
                f"&{buffer}[{at}], "
                f"{print_index(step)}, {strided.name}_n, {last.name}_n);"
            )
        self.close()

    def load_source(self, buffer: str, index: Expr, lane: str | None) -> str:
        """As for every kernel, or the element of a tile."""
        name = self._tiles.get((buffer, index))
        if name is None:
            return super().load_source(buffer, index, lane)
        strided, last = self._tile_loops
        tile = f"{last}_tile - {last}_block + {strided} - {strided}_tile"
        return f"{name}[{STRIP_ELEMENTS} * ({tile}) + {last} - {last}_tile]"

    # --- row gathers -----------------------------------------------------------------------------

    def _find_gathers(self) -> None:
        """Analyse gather positions once for all rows, and each table of positions once."""
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

    def _print_gather_strips(self, emitter: CppEmitter) -> None:
        """Print the last loop strip by strip, with gathered rows."""
        line, last = self.lines.line, self.kernel.xs[-1]
        count, strip = int(self.kernel.ranges[last]), f"{last.name}_strip"
        whole = count // STRIP_ELEMENTS * STRIP_ELEMENTS
        nodes = self.kernel.nodes()

        def gathered() -> CppEmitter:
            """An emitter whose loads read the gathered strip."""
            other = emitter.in_new_scope()
            rows_of_gathers: dict[tuple[str, str], str] = {}
            for gather, found in self._gathers.items():
                row = row_start(gather, emitter)
                if (row, found) not in rows_of_gathers:
                    name = rows_of_gathers[row, found] = self.fresh("taken")
                    ctype = CTYPE[self.kernel.dtypes[gather.load.args[0]]]
                    line(f"alignas(64) {ctype} {name}[{STRIP_ELEMENTS}];")
                    line(f"take({name}, &{row}, {found}[{strip} / {STRIP_ELEMENTS}]);")
                other.hoisted[gather.load] = f"{rows_of_gathers[row, found]}[{last.name} - {strip}]"
            return other

        if whole:
            line(f"for (i64 {strip} = 0; {strip} < {whole}; {strip} += {STRIP_ELEMENTS}) {{")
            self.lines.indent()
            element = gathered()
            self.streams.print_strip(
                self.streams.find(nodes, last),
                last,
                strip,
                lambda: self._print_element(element.in_new_scope()),
            )
            self.close()
        if count > whole:
            line("{")
            self.lines.indent()
            line(f"const i64 {strip} = {whole};")
            element = gathered()
            line(self.simd_pragma())
            self.open_loop(last, strip, str(count))
            self._print_element(element.in_new_scope())
            self.close(2)

    # --- the vector loop -----------------------------------------------------------------------

    def _hoist(self, emitter: CppEmitter) -> None:
        """Hoist the invariants of the last loop."""
        kernel, loop = self.kernel, self.kernel.xs[-1]
        if not index_arithmetic.is_nonnegative(kernel.ranges[loop] - 1):
            return  # the loop may not run at all
        bodies = [node.body for node in kernel.nodes()]
        emitter.hoist((body, loop_invariants(body, loop, kernel.inputs)) for body in bodies)

    def _print_simd_loop(
        self, emitter: CppEmitter, begin: str = "0", end: str | None = None, share: str = ""
    ) -> None:
        last = self.kernel.xs[-1]
        end = end if end is not None else print_index(self.kernel.ranges[last])
        self.print_vector_loop(
            self.kernel.nodes(),
            last,
            begin,
            end,
            lambda: self._print_element(emitter.in_new_scope()),
            share,
        )

    def _print_vector(self, emitter: CppEmitter) -> None:
        """Print the last loop, without masks in its interior (inside the borders of an image).

        For the iterations outside the interior, the loop with masks is a lambda.
        """
        self._hoist(emitter)
        kernel, line = self.kernel, self.lines.line
        if self._gathers:
            self._print_gather_strips(emitter)
            return
        inside = interior_loops.find_interior(kernel, kernel.xs[-1], emitter.hoisted, self.hint)
        if inside is None or kernel.messages:
            self._print_simd_loop(emitter)
            return
        line("const auto masked = [=](i64 begin, i64 end) {")
        self.lines.indent()
        self._print_simd_loop(emitter, "begin", "end")
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
        self._print_simd_loop(emitter.assuming(inside.known), begin, end)
        if end != extent:
            line(f"masked({end}, {extent});")
        self.lines.indent(-1)
        line(f"}} else masked(0, {extent});")

"""What the C++ printers of all kinds of kernels share: where buffers live, loops, and flags."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Lines, Node
from magpy_like.compiler.codegen.common.recomputation import Producers
from magpy_like.compiler.codegen.cpp.cpp_expressions import CTYPE, print_index
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Value

STRIP_ELEMENTS = 16  # elements that are stored past the caches together: a cache line of float32
MIN_STREAMING_BYTES = (
    24 * 2**20
)  # bytes that a kernel moves from which its results would push all else out
MIN_PREFETCH_BYTES = (
    2**20
)  # bytes that a kernel moves from which they do not come from a core's own caches
MAX_CACHED_ROW_BYTES = 2**18  # bytes that are still all there when a kernel comes to them again
PREFETCH_DISTANCE_BYTES = (
    8192  # bytes between what is fetched and what is computed, where memory is read in pieces
)
PREFETCH_ROW_BYTES = (
    512,
    16384,
)  # bytes in a row: below, fetching costs more than it saves; above, none is due
HALF_BLOCK_ELEMENTS = (
    256  # elements of float16 that are converted at once: few enough to be passed on by the core
)
MIN_PARALLEL_ELEMENTS = (
    16384  # elements of work below which a second thread costs more than it brings
)

LoopPositions = dict[Symbol, Expr]  # loop -> where in it
LoopStrides = dict[Symbol, Expr]  # loop -> by how many elements it moves what is read


def is_serial(kernel: Kernel) -> bool:
    """A scatter may write one place from two iterations."""
    return any(
        store.args[3] is not None or not store.args[1].free_symbols.isdisjoint(node.body.indirect)
        for node in kernel.nodes()
        for store in node.body.of("store")
    )


class CppKernel:
    """Prints the loops of one kernel. ``hint`` gives sizes for the example inputs."""

    columns = False  # does a vector hold neighbouring rows (outer iterations)?
    tile = 1  # columns per tile, at most

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        self.kernel = kernel
        self.hint = hint
        self.lines = Lines()
        self._count = 0
        self.locals: dict[str, str] = {}  # forwarded buffer -> C variable or array
        self._scratch: set[str] = set()
        self.recomputed: Producers = {}  # what later phases compute again instead
        self.scans: dict[Value, list[str]] = {}  # scan -> its accumulators
        self._strips: dict[tuple[str, Expr], str] = {}  # store past the caches -> array
        self._strip = ""  # where in it the element being printed is
        self._half_elements: dict[
            tuple[str, str, Expr], str
        ] = {}  # float16 load or store -> its element
        self._prefetched: set[tuple[str, Expr]] = set()  # what was asked for ahead: (buffer, index)

    @property
    def work(self) -> int:
        """Elements that the kernel runs over, for the example inputs."""
        return self.hint(self.iteration_count())

    def body(self) -> None:
        """Print the function's loops."""
        raise NotImplementedError

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # --- where buffers live --------------------------------------------------------------------

    def load_source(self, buffer: str, index: Expr, lane: str | None) -> str:
        """What to read: memory, scratch row, or a forwarded variable."""
        local = self.locals.get(buffer)
        if local is not None:
            return self._local_element(buffer, local, lane)
        wide = self._half_elements.get(("load", buffer, index))
        return wide if wide is not None else f"{buffer}[{print_index(index)}]"

    def half_store(self, buffer: str, index: Expr) -> str | None:
        """Where a value of float16 is to be written as a float32, if it is."""
        return self._half_elements.get(("store", buffer, index))

    def store_targets(self, buffer: str, index: Expr, lane: str | None) -> list[str]:
        places = []
        if (buffer, index) in self._strips:
            places.append(f"{self._strips[buffer, index]}[{self._strip}]")
        elif buffer not in self.kernel.removed:
            places.append(f"{buffer}[{print_index(index)}]")
        local = self.locals.get(buffer)
        if local is not None:
            places.append(self._local_element(buffer, local, lane))
        return places

    def _local_element(self, buffer: str, local: str, lane: str | None) -> str:
        if buffer in self._scratch:
            return f"{local}[{print_index(self._row_position())}]"
        return f"{local}[{lane}]" if lane is not None else local

    def _row_position(self) -> Expr:
        rs = self.kernel.rs
        position = index_arithmetic.flatten(list(rs), [self.kernel.ranges[r] for r in rs])
        if self.columns:
            position = position * self.tile + sympy.Symbol("l", integer=True)
        return position

    def declare_locals(self, scalar: bool) -> None:
        """Variables for outer values that a later phase reads; they hold what memory would."""
        for buffer, kind in self.kernel.forward.items():
            if kind == "outer":
                ctype = CTYPE[self.kernel.dtypes[buffer]]
                self.locals[buffer] = f"v_{buffer}"
                self.lines.line(f"{ctype} v_{buffer}{'' if scalar else f'[{self.tile}]'};")

    def open_scratch(self) -> None:
        row = self.kernel.size(self.kernel.rs)
        for b in self.kernel.scratch_rows():
            ctype = CTYPE[self.kernel.dtypes[b]]
            count = print_index(row * self.tile if self.columns else row)
            self.lines.line(
                f"{ctype}* __restrict__ row_{b} = ({ctype}*)aligned_alloc(64, "
                f"({count} * sizeof({ctype}) + 63) / 64 * 64);"
            )
            self.locals[b] = f"row_{b}"
            self._scratch.add(b)

    def close_scratch(self) -> None:
        for b in self.kernel.scratch_rows():
            self.lines.line(f"free(row_{b});")

    # --- loops ---------------------------------------------------------------------------------

    def iteration_count(self) -> Expr:
        return self.kernel.size((*self.kernel.xs, *self.kernel.rs))

    def parallel_clause(self, work: Expr) -> str:
        """The ``if`` clause, or nothing when it is known to hold."""
        if work.is_Integer:
            return "" if int(work) >= MIN_PARALLEL_ELEMENTS else " if(0)"
        return f" if({print_index(work)} >= {MIN_PARALLEL_ELEMENTS})"

    def open_loop(self, v: Symbol, begin: str = "0", end: str | None = None) -> None:
        end = end if end is not None else print_index(self.kernel.ranges[v])
        self.lines.line(f"for (i64 {v.name} = {begin}; {v.name} < {end}; ++{v.name}) {{")
        self.lines.indent()

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.lines.indent(-1)
            self.lines.line("}")

    def simd_pragma(self, reductions: Sequence[str] = ()) -> str:
        flags = [f" reduction(|:{', '.join(self.flags())})"] if self.flags() else []
        return "#pragma omp simd" + "".join([*flags, *reductions])

    # --- memory that is not in a cache -----------------------------------------------------------

    @functools.cached_property
    def traffic(self) -> int:
        """Bytes that the kernel reads and writes, for the example inputs."""
        found: dict[str, int] = {}
        for node in self.kernel.nodes():
            for v in node.body.values:
                if v.op in ("load", "store") and v.args[0] not in self.kernel.removed:
                    loops = v.args[1].free_symbols & self.kernel.ranges.keys()
                    size = self.hint(self.kernel.size(loops))
                    size *= self.kernel.dtypes[v.args[0]].itemsize
                    found[v.args[0]] = max(found.get(v.args[0], 0), size)
        return sum(found.values())

    @property
    def needs_prefetch(self) -> bool:
        """Is what the kernel reads too much for a core's own caches?"""
        return self.traffic >= MIN_PREFETCH_BYTES

    def streaming_stores(self, nodes: Sequence[Node], loop: Symbol) -> list[tuple[str, Expr]]:
        """The stores in ``loop`` that are to go past the caches: (buffer, index).

        Such a store does not read the line that it overwrites, and leaves the caches to others.
        """
        if self.traffic < MIN_STREAMING_BYTES or self.kernel.messages or is_serial(self.kernel):
            return []
        forward = self.kernel.forward
        read = {b for n in self.kernel.nodes() for b in n.reads if forward.get(b) != "value"}
        found = []
        for node in nodes:
            for v in node.body.of("store"):
                buffer, index = v.args[:2]
                form = index_arithmetic.coefficients(index, self.kernel.ranges)
                if (
                    form is not None
                    and form[0].get(loop) == 1
                    and not v.outer
                    and buffer not in read
                    and buffer not in self.kernel.removed
                    and self.kernel.dtypes[buffer].itemsize > 1
                    and self.kernel.dtypes[buffer] != torch.float16
                ):
                    found.append((buffer, index))
        return found

    def print_streaming_strip(
        self, streamed: Sequence[tuple[str, Expr]], loop: Symbol, begin: str,
        element: Callable[[], None],
    ) -> None:  # fmt: skip
        """A strip of ``loop`` from ``begin``, with stores past the caches."""
        line, first = self.lines.line, sympy.Symbol(begin, integer=True)
        for buffer, index in streamed:
            name = self._strips[buffer, index] = self.fresh("strip")
            line(f"alignas(64) {CTYPE[self.kernel.dtypes[buffer]]} {name}[{STRIP_ELEMENTS}];")
        self._strip = self.fresh("lane")
        line(self.simd_pragma())
        line(f"for (i64 {self._strip} = 0; {self._strip} < {STRIP_ELEMENTS}; ++{self._strip}) {{")
        self.lines.indent()
        line(f"const i64 {loop.name} = {begin} + {self._strip};")
        element()
        self.close()
        for buffer, index in streamed:
            place = f"{buffer}[{print_index(index.xreplace({loop: first}))}]"
            line(f"stream(&{place}, {self._strips.pop((buffer, index))});")

    def vector_loop(
        self, nodes: Sequence[Node], loop: Symbol, begin: str, end: str,
        element: Callable[[], None], share: str = "", pieces: bool = False,
    ) -> None:  # fmt: skip
        """``loop`` as a vector; ``element`` prints an iteration, each time with names of its own.
        ``share`` are clauses that share it among threads. Of a loop that runs over ``pieces`` of
        memory, the next ones are asked for."""
        streamed, line = self.streaming_stores(nodes, loop), self.lines.line
        if pieces and not streamed:
            self.prefetch(nodes, loop, begin)
        if self.half_accesses(nodes, loop):
            block, stop = f"{loop.name}_block", f"{loop.name}_end"
            if share:
                line(f"#pragma omp for{share}")
            line(
                f"for (i64 {block} = {begin}; {block} < {end}; {block} += {HALF_BLOCK_ELEMENTS}) {{"
            )
            self.lines.indent()
            line(f"const i64 {stop} = m_minimum<i64>({block} + {HALF_BLOCK_ELEMENTS}, {end});")
            self.open_half_block(nodes, loop, block, stop)
            line(self.simd_pragma())
            self.open_loop(loop, block, stop)
            element()
            self.close()
            self.close_half_block(loop, block, stop)
            self.close()
            return
        if not streamed:
            line(f"#pragma omp for simd{share}" if share else self.simd_pragma())
            self.open_loop(loop, begin, end)
            element()
            self.close()
            return
        strip = f"{loop.name}_strip"
        if share:
            line(f"#pragma omp for{share}")
        line(f"for (i64 {strip} = {begin}; {strip} < {end}; {strip} += {STRIP_ELEMENTS}) {{")
        self.lines.indent()
        if pieces:
            self.prefetch(nodes, loop, strip, STRIP_ELEMENTS)
        extent = self.kernel.ranges[loop]
        if (
            extent.is_Integer
            and (begin, end) == ("0", str(extent))
            and int(extent) % STRIP_ELEMENTS == 0
        ):
            self.print_streaming_strip(streamed, loop, strip, element)
            self.close()
            return
        line(f"if ({end} - {strip} >= {STRIP_ELEMENTS}) {{")
        self.lines.indent()
        self.print_streaming_strip(streamed, loop, strip, element)
        self.lines.indent(-1)
        line("} else {")
        self.lines.indent()
        line(self.simd_pragma())
        self.open_loop(loop, strip, end)
        element()
        self.close(3)

    # --- float16 -------------------------------------------------------------------------------

    def half_accesses(self, nodes: Sequence[Node], loop: Symbol) -> list[tuple[str, str, Expr]]:
        """The loads and stores of float16, one after another in ``loop``, that are converted a row
        at a time: (operation, buffer, index). By itself the compiler finds no instruction."""
        if self.kernel.messages or is_serial(self.kernel):
            return []
        found: dict[tuple[str, str, Expr], None] = {}
        for node in nodes:
            for v in node.body.values:
                if v.op not in ("load", "store") or v.outer:
                    continue
                buffer, index, condition = *v.args[:2], v.args[-1]  # a mask, or a mode
                form = index_arithmetic.coefficients(index, self.kernel.ranges)
                if (
                    self.kernel.dtypes[buffer] == torch.float16
                    and condition is None
                    and form is not None
                    and form[0].get(loop) == 1
                    and not index.free_symbols & set(node.body.indirect)
                    and buffer not in self.locals
                    and buffer not in self.kernel.removed
                    and not (v.op == "load" and self.kernel.forward.get(buffer) == "value")
                ):
                    found[v.op, buffer, index] = None
        return list(found)

    def open_half_block(self, nodes: Sequence[Node], loop: Symbol, begin: str, end: str) -> None:
        """Convert what ``loop`` reads from ``begin`` to ``end``, at most WIDE elements."""
        for op, buffer, index in self.half_accesses(nodes, loop):
            name = self.fresh("wide")
            self.lines.line(f"alignas(64) f32 {name}[{HALF_BLOCK_ELEMENTS}];")
            if op == "load":
                place = self._first_element(buffer, index, loop, begin)
                self.lines.line(f"widen_row({name}, &{place}, {end} - {begin});")
            self._half_elements[op, buffer, index] = f"{name}[{loop.name} - {begin}]"

    def close_half_block(self, loop: Symbol, begin: str, end: str) -> None:
        """Convert what ``loop`` has written."""
        for (op, buffer, index), element in self._half_elements.items():
            if op == "store":
                place = self._first_element(buffer, index, loop, begin)
                name = element.partition("[")[0]
                self.lines.line(f"narrow_row(&{place}, {name}, {end} - {begin});")
        self._half_elements = {}

    def _first_element(self, buffer: str, index: Expr, loop: Symbol, begin: str) -> str:
        start = sympy.S.Zero if begin == "0" else sympy.Symbol(begin, integer=True)
        return f"{buffer}[{print_index(index.xreplace({loop: start}))}]"

    def fence_streaming_stores(self) -> None:
        """Before threads meet: what went past the caches is where others see it."""
        if self.traffic >= MIN_STREAMING_BYTES:
            self.lines.line("streamed();")

    def prefetch(
        self, nodes: Sequence[Node], loop: Symbol, begin: str, count: int | None = None,
        rows_of: Sequence[Node] | None = None, late: int = 0,
    ) -> None:  # fmt: skip
        """Ask for what ``loop`` will read a while later, further on in its row or in one of the
        next. The processor does so too, where it is what comes next in memory, but not as far.

        ``count`` elements from ``begin`` are asked for; if not given, a whole row, and only where
        rows do not follow one another. Once is enough for what stays in a core's own caches.
        Of rows of other outer iterations, those are asked for that ``rows_of`` reads; ``late`` of
        them further on, as this one and perhaps the next have been read already.
        """
        if not self.needs_prefetch:
            return
        rows_of = nodes if rows_of is None else rows_of
        start = sympy.S.Zero if begin == "0" else sympy.Symbol(begin, integer=True)
        extent = self.kernel.ranges[loop]
        loops = (*self.kernel.xs, *self.kernel.rs)
        outer = loops[loops.index(loop) - 1] if loops.index(loop) > 0 else None

        def places(node: Node, width: int, steps: LoopStrides) -> list[LoopPositions]:
            row = self.hint(extent) * width
            step = 0 if outer is None else steps.get(outer, 0)
            jumps = (
                step not in (0, extent) and PREFETCH_ROW_BYTES[0] <= row <= PREFETCH_ROW_BYTES[1]
            )
            place: LoopPositions = {loop: start}
            if step != 0 and outer is not None and row < 2 * PREFETCH_DISTANCE_BYTES:
                another = outer in self.kernel.xs  # not one that this iteration reads, too
                place[outer] = outer + (
                    max(1, PREFETCH_DISTANCE_BYTES // row) + (late if another else 0)
                )
            else:
                another = False
                place[loop] = start + PREFETCH_DISTANCE_BYTES // width
            if node not in (rows_of if another else nodes):
                return []
            if not jumps and (
                count is None or (row < PREFETCH_DISTANCE_BYTES and outer not in place)
            ):
                return []
            return [place]

        asked = dict.fromkeys((*nodes, *rows_of))
        self.prefetch_at(asked, loop, places, str(count or print_index(extent)))

    def prefetch_at(
        self, nodes: Iterable[Node], loop: Symbol,
        places: Callable[[Node, int, LoopStrides], list[LoopPositions]], count: str,
    ) -> None:  # fmt: skip
        """Ask for ``count`` elements from each of the ``places`` of a load: what they are follows
        from its node, the size of its elements in bytes, and by how many of them each loop moves
        it."""
        for node in nodes:
            for v in node.body.of("load"):
                buffer, index, _ = v.args
                steps = self._prefetch_strides(node, v, loop)
                if steps is None:
                    continue
                for place in places(node, self.kernel.dtypes[buffer].itemsize, steps):
                    self._prefetched.add((buffer, index))
                    ahead = print_index(index.xreplace(place))
                    self.lines.line(f"fetch(&{buffer}[{ahead}], {count});")

    def _prefetch_strides(self, node: Node, load: Value, loop: Symbol) -> LoopStrides | None:
        """By how many elements each loop moves what ``load`` reads, if that can be asked for ahead
        and has not been."""
        buffer, index, mask = load.args
        form = index_arithmetic.coefficients(index, self.kernel.ranges)
        width = self.kernel.dtypes[buffer].itemsize
        again = self.hint(self.kernel.size(self.kernel.rs)) * width > MAX_CACHED_ROW_BYTES
        if (
            form is None
            or form[0].get(loop) != 1
            or mask is not None
            or buffer not in (*self.kernel.inputs, *self.kernel.outputs)
            or index.free_symbols & set(node.body.indirect)
            or ((buffer, index) in self._prefetched and not again)
        ):
            return None
        return form[0]

    # --- checks that failed --------------------------------------------------------------------

    def flags(self) -> list[str]:
        return [f"bad{k + 1}" for k in range(len(self.kernel.messages))]

    def flag_clause(self) -> str:
        return f" reduction(|:{', '.join(self.flags())})" if self.flags() else ""

    def declare_flags(self) -> None:
        for flag in self.flags():
            self.lines.line(f"bool {flag} = false;")

    def report_flags(self) -> None:
        """Of several, the first check in the program is the one that eager comes to."""
        for k, flag in reversed(list(enumerate(self.flags()))):
            self.lines.line(f"if ({flag}) __atomic_store_n(&raised, {k + 1}, __ATOMIC_RELAXED);")

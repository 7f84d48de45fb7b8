"""Base of the C++ printers: buffers, loops, and the flags of failed checks of one kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Lines, Node
from magpy_like.compiler.codegen.common.recomputation import Producers
from magpy_like.compiler.codegen.cpp.cpp_expressions import CTYPE, print_index
from magpy_like.compiler.codegen.cpp.cpp_float16 import HALF_BLOCK_ELEMENTS, HalfBlocks
from magpy_like.compiler.codegen.cpp.cpp_prefetch import Prefetcher
from magpy_like.compiler.codegen.cpp.cpp_streaming import STRIP_ELEMENTS, StreamingStores
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Value

#: Elements of work below which a second thread costs more than it saves.
MIN_PARALLEL_ELEMENTS = 16384


def is_serial(kernel: Kernel) -> bool:
    """True if two iterations may write one address: the kernel scatters."""
    return any(
        store.args[3] is not None or not store.args[1].free_symbols.isdisjoint(node.body.indirect)
        for node in kernel.nodes()
        for store in node.body.of("store")
    )


class CppKernel:
    """Prints the loops of one kernel; ``hint`` evaluates sizes for the example inputs.

    A subclass prints one shape of loop nest. Attributes for :class:`CppEmitter`: ``locals`` maps
    forwarded buffers to C++ variables or arrays, ``recomputed`` buffers to what later phases
    recompute them from, ``scans`` scans to their accumulators.
    """

    columns = False  # are vector lanes neighbouring outer iterations?
    tile = 1  # columns per tile, at most

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        self.kernel = kernel
        self.hint = hint
        self.lines = Lines()
        self._count = 0
        self.locals: dict[str, str] = {}
        self._scratch: set[str] = set()
        self.recomputed: Producers = {}
        self.scans: dict[Value, list[str]] = {}
        self.streams = StreamingStores(self)
        self.halves = HalfBlocks(self)
        self.prefetcher = Prefetcher(self)

    @property
    def work(self) -> int:
        """Elements that the kernel iterates over, for the example inputs."""
        return self.hint(self.iteration_count())

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
    def is_plain(self) -> bool:
        """True if no iteration checks a condition or scatters."""
        return not self.kernel.messages and not is_serial(self.kernel)

    def print_body(self) -> None:
        """Print the function's loops."""
        raise NotImplementedError

    def fresh(self, prefix: str) -> str:
        """A new C++ name with a prefix."""
        self._count += 1
        return f"{prefix}{self._count}"

    # --- buffers --------------------------------------------------------------------------------

    def load_source(self, buffer: str, index: Expr, lane: str | None) -> str:
        """The C++ expression a load reads: memory, a scratch row, or a forwarded variable."""
        local = self.locals.get(buffer)
        if local is not None:
            return self._local_element(buffer, local, lane)
        half = self.halves.element("load", buffer, index)
        return half if half is not None else f"{buffer}[{print_index(index)}]"

    def store_targets(self, buffer: str, index: Expr, lane: str | None) -> list[str]:
        """The C++ lvalues a store writes: memory, and a local that a later phase reads."""
        targets = []
        strip = self.streams.element(buffer, index)
        if strip is not None:
            targets.append(strip)
        elif buffer not in self.kernel.removed:
            targets.append(f"{buffer}[{print_index(index)}]")
        local = self.locals.get(buffer)
        if local is not None:
            targets.append(self._local_element(buffer, local, lane))
        return targets

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
        """Declare variables for outer values that a later phase reads, in the buffers' dtypes."""
        for buffer, kind in self.kernel.forward.items():
            if kind == "outer":
                ctype = CTYPE[self.kernel.dtypes[buffer]]
                self.locals[buffer] = f"v_{buffer}"
                self.lines.line(f"{ctype} v_{buffer}{'' if scalar else f'[{self.tile}]'};")

    def open_scratch(self) -> None:
        """Allocate a row (of all columns of a tile) for each value kept between phases."""
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
        """Free the rows of :meth:`open_scratch`."""
        for b in self.kernel.scratch_rows():
            self.lines.line(f"free(row_{b});")

    # --- loops ---------------------------------------------------------------------------------

    def iteration_count(self) -> Expr:
        """Iterations of all loops together."""
        return self.kernel.size((*self.kernel.xs, *self.kernel.rs))

    def parallel_clause(self, work: Expr) -> str:
        """The OpenMP ``if`` clause for this many elements; empty where it is known to hold."""
        if work.is_Integer:
            return "" if int(work) >= MIN_PARALLEL_ELEMENTS else " if(0)"
        return f" if({print_index(work)} >= {MIN_PARALLEL_ELEMENTS})"

    def open_loop(self, v: Symbol, begin: str = "0", end: str | None = None) -> None:
        """Open a loop over ``v``, by default over its whole range."""
        end = end if end is not None else print_index(self.kernel.ranges[v])
        self.lines.line(f"for (i64 {v.name} = {begin}; {v.name} < {end}; ++{v.name}) {{")
        self.lines.indent()

    def close(self, count: int = 1) -> None:
        """Close scopes, innermost first."""
        for _ in range(count):
            self.lines.indent(-1)
            self.lines.line("}")

    def simd_pragma(self, reductions: Sequence[str] = ()) -> str:
        """The pragma of a vector loop, with the reduction clauses of check flags and others."""
        flags = [f" reduction(|:{', '.join(self.flags())})"] if self.flags() else []
        return "#pragma omp simd" + "".join([*flags, *reductions])

    def print_vector_loop(
        self, nodes: Sequence[Node], loop: Symbol, begin: str, end: str,
        element: Callable[[], None], share: str = "", pieces: bool = False,
    ) -> None:  # fmt: skip
        """Print ``loop`` from ``begin`` to ``end`` as a vector loop.

        Args:
            nodes: The loop nests in it.
            element: Prints an iteration, each time with new names.
            share: OpenMP clauses that share the loop among threads.
            pieces: The loop runs over non-adjacent rows: prefetch the next ones.
        """
        streamed = self.streams.find(nodes, loop)
        if pieces and not streamed:
            self.prefetcher.prefetch(nodes, loop, begin)
        if self.halves.find(nodes, loop):
            self._print_half_vector_loop(nodes, loop, begin, end, element, share)
        elif streamed:
            if share:
                self.lines.line(f"#pragma omp for{share}")
            strip = f"{loop.name}_strip"
            self.open_strips(strip, begin, end)
            if pieces:
                self.prefetcher.prefetch(nodes, loop, strip, STRIP_ELEMENTS)
            self._print_streaming_strip(streamed, loop, begin, end, element)
        else:
            self.lines.line(f"#pragma omp for simd{share}" if share else self.simd_pragma())
            self.open_loop(loop, begin, end)
            element()
            self.close()

    def open_strips(self, strip: str, begin: str, end: str) -> None:
        """Open a loop over the strips from ``begin`` to ``end``; ``strip`` is its variable."""
        step = STRIP_ELEMENTS
        self.lines.line(f"for (i64 {strip} = {begin}; {strip} < {end}; {strip} += {step}) {{")
        self.lines.indent()

    def _print_half_vector_loop(
        self, nodes: Sequence[Node], loop: Symbol, begin: str, end: str,
        element: Callable[[], None], share: str,
    ) -> None:  # fmt: skip
        line, step = self.lines.line, HALF_BLOCK_ELEMENTS
        block, stop = f"{loop.name}_block", f"{loop.name}_end"
        if share:
            line(f"#pragma omp for{share}")
        line(f"for (i64 {block} = {begin}; {block} < {end}; {block} += {step}) {{")
        self.lines.indent()
        line(f"const i64 {stop} = m_minimum<i64>({block} + {step}, {end});")
        self.halves.open(nodes, loop, block, stop)
        line(self.simd_pragma())
        self.open_loop(loop, block, stop)
        element()
        self.close()
        self.halves.close(loop, block, stop)
        self.close()

    def _print_streaming_strip(
        self, streamed: Sequence[tuple[str, Expr]], loop: Symbol, begin: str, end: str,
        element: Callable[[], None],
    ) -> None:  # fmt: skip
        """The body of the loop over strips: a whole strip with streaming stores, or the last
        elements with ordinary ones."""
        line, strip, extent = self.lines.line, f"{loop.name}_strip", self.kernel.ranges[loop]
        whole = extent.is_Integer and (begin, end) == ("0", str(extent))
        if whole and int(extent) % STRIP_ELEMENTS == 0:
            self.streams.print_strip(streamed, loop, strip, element)
            self.close()
            return
        line(f"if ({end} - {strip} >= {STRIP_ELEMENTS}) {{")
        self.lines.indent()
        self.streams.print_strip(streamed, loop, strip, element)
        self.lines.indent(-1)
        line("} else {")
        self.lines.indent()
        line(self.simd_pragma())
        self.open_loop(loop, strip, end)
        element()
        self.close(3)

    # --- flags of failed checks ----------------------------------------------------------------

    def flags(self) -> list[str]:
        """The flags of failed checks, one per message."""
        return [f"bad{k + 1}" for k in range(len(self.kernel.messages))]

    def flag_clause(self) -> str:
        """The OpenMP reduction clause of the flags; empty without checks."""
        return f" reduction(|:{', '.join(self.flags())})" if self.flags() else ""

    def declare_flags(self) -> None:
        for flag in self.flags():
            self.lines.line(f"bool {flag} = false;")

    def report_flags(self) -> None:
        """Report the failed check that comes first in the program, as eager does."""
        for k, flag in reversed(list(enumerate(self.flags()))):
            self.lines.line(f"if ({flag}) __atomic_store_n(&raised, {k + 1}, __ATOMIC_RELAXED);")

"""What the C++ printers of all kinds of kernels share: where buffers live, loops, and flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from magpy_like.compiler import indexing
from magpy_like.compiler.codegen.common import Kernel, Lines
from magpy_like.compiler.codegen.cpp_values import CTYPE, print_index
from magpy_like.compiler.indexing import Expr, Symbol
from magpy_like.compiler.ops import Value, compute_dtype

GRAIN = 16384  # elements of work below which a second thread costs more than it brings
TILE = 256  # columns per tile, at most


class CppKernel:
    """Prints the loops of one kernel. ``hint`` gives sizes for the example inputs."""

    columns = False  # does a vector hold neighbouring rows (outer iterations)?

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        self.kernel = kernel
        self.hint = hint
        self.lines = Lines()
        self._count = 0
        self.locals: dict[str, str] = {}  # forwarded buffer -> C variable or array
        self._scratch: set[str] = set()
        self.scans: dict[Value, list[str]] = {}  # scan -> its accumulators

    @property
    def work(self) -> int:
        """Elements that the kernel runs over, for the example inputs."""
        return self.hint(self.total())

    def body(self) -> None:
        """Print the function's loops."""
        raise NotImplementedError

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # --- where buffers live --------------------------------------------------------------------

    def place(self, buffer: str, index: Expr, lane: str | None) -> str:
        """What to read: memory, scratch row, or a forwarded variable."""
        local = self.locals.get(buffer)
        if local is not None:
            return self._local_place(buffer, local, lane)
        return f"{buffer}[{print_index(index)}]"

    def stores(self, buffer: str, index: Expr, lane: str | None) -> list[str]:
        places = []
        if buffer not in self.kernel.removed:
            places.append(f"{buffer}[{print_index(index)}]")
        local = self.locals.get(buffer)
        if local is not None:
            places.append(self._local_place(buffer, local, lane))
        return places

    def _local_place(self, buffer: str, local: str, lane: str | None) -> str:
        if buffer in self._scratch:
            return f"{local}[{print_index(self._row_position())}]"
        return f"{local}[{lane}]" if lane is not None else local

    def _row_position(self) -> Expr:
        rs = self.kernel.rs
        position = indexing.flatten(list(rs), [self.kernel.ranges[r] for r in rs])
        if self.columns:
            position = position * TILE + sympy.Symbol("l", integer=True)
        return position

    def declare_locals(self, scalar: bool) -> None:
        """Variables for outer values that a later phase reads."""
        for buffer, kind in self.kernel.forward.items():
            if kind == "outer":
                ctype = CTYPE[compute_dtype(self.kernel.dtypes[buffer])]
                self.locals[buffer] = f"v_{buffer}"
                self.lines.line(f"{ctype} v_{buffer}{'' if scalar else f'[{TILE}]'};")

    def open_scratch(self) -> None:
        row = self.kernel.size(self.kernel.rs)
        for b in self.kernel.scratch_rows():
            ctype = CTYPE[self.kernel.dtypes[b]]
            count = print_index(row * TILE if self.columns else row)
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

    def total(self) -> Expr:
        return self.kernel.size((*self.kernel.xs, *self.kernel.rs))

    def parallel(self, work: Expr) -> str:
        """The ``if`` clause, or nothing when it is known to hold."""
        if work.is_Integer:
            return "" if int(work) >= GRAIN else " if(0)"
        return f" if({print_index(work)} >= {GRAIN})"

    def is_serial(self) -> bool:
        """A scatter may write one place from two iterations."""
        for node in self.kernel.nodes():
            for store in node.body.of("store"):
                if store.args[3] is not None or store.args[1].free_symbols & set(
                    node.body.indirect
                ):
                    return True
        return False

    def open_loop(self, v: Symbol, begin: str = "0", end: str | None = None) -> None:
        end = end if end is not None else print_index(self.kernel.ranges[v])
        self.lines.line(f"for (i64 {v.name} = {begin}; {v.name} < {end}; ++{v.name}) {{")
        self.lines.indent()

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.lines.indent(-1)
            self.lines.line("}")

    def simd(self, reductions: Sequence[str] = ()) -> str:
        flags = [f" reduction(|:{', '.join(self.flags())})"] if self.flags() else []
        return "#pragma omp simd" + "".join([*flags, *reductions])

    # --- checks that failed --------------------------------------------------------------------

    def flags(self) -> list[str]:
        return [f"bad{k + 1}" for k in range(len(self.kernel.messages))]

    def flag_clause(self) -> str:
        return f" reduction(|:{', '.join(self.flags())})" if self.flags() else ""

    def declare_flags(self) -> None:
        for flag in self.flags():
            self.lines.line(f"bool {flag} = false;")

    def report_flags(self) -> None:
        for k, flag in enumerate(self.flags()):
            self.lines.line(f"if ({flag}) __atomic_store_n(&raised, {k + 1}, __ATOMIC_RELAXED);")

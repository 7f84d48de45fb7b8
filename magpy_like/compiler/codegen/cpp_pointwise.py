"""Pointwise kernels in C++: every iteration on its own."""

from __future__ import annotations

from magpy_like.compiler import indexing
from magpy_like.compiler.codegen.cpp_kernel import GRAIN, CppKernel
from magpy_like.compiler.codegen.cpp_values import CppEmitter, print_index
from magpy_like.compiler.indexing import Symbol

STRIP = 16  # elements of a strided loop run before the next tile: a cache line of float32


class Pointwise(CppKernel):
    """A vector along the last loop, in square tiles where one buffer is contiguous along another
    loop than the rest."""

    def body(self) -> None:
        kernel, line = self.kernel, self.lines.line
        serial = self.is_serial()
        xs = kernel.xs
        condition = "" if serial else self.parallel(self.total())
        emitter = CppEmitter(self)

        def element() -> None:
            for phase in kernel.phases:
                for node in phase.outer:
                    emitter.run(node.body, node.body.values)

        self.declare_locals(scalar=True)
        if not xs:
            self.declare_flags()
            element()
            self.report_flags()
            return
        if serial:
            self.declare_flags()
            for v in xs:
                self.open_loop(v)
            element()
            self.close(len(xs))
            self.report_flags()
            return
        if len(xs) == 1:
            self.declare_flags()  # shared: the loop itself reduces them
        line(f"#pragma omp parallel{condition}")
        line("{")
        self.lines.indent()
        if len(xs) > 1:
            self.declare_flags()
        if len(xs) == 1:
            line(f"#pragma omp for simd schedule(static){self.flag_clause()}")
            self.open_loop(xs[0])
            depth = 1
        else:
            depth = self._open_nest(xs, self._strided_loop())
        element()
        self.close(depth)
        if len(xs) > 1:
            self.report_flags()
        self.close()
        if len(xs) == 1:
            self.report_flags()

    def _strided_loop(self) -> Symbol | None:
        """The loop, not the last, that some buffer is contiguous in while the last one jumps."""
        *outer, last = self.kernel.xs
        if self.work < GRAIN:
            return None
        for node in self.kernel.nodes():
            for v in node.body.values:
                if v.op not in ("load", "store"):
                    continue
                form = indexing.coefficients(v.args[1], self.kernel.xs)
                if form is None or form[0].get(last, 0) in (0, 1):
                    continue
                for x in outer:
                    if form[0].get(x) == 1 and self.hint(self.kernel.ranges[x]) >= STRIP:
                        return x
        return None

    def _open_nest(self, xs: list[Symbol], strided: Symbol | None) -> int:
        """Open the loops of a pointwise kernel, the last one a vector; how many there are.

        A strided loop is cut into strips of a cache line, each run inside a tile of the last
        loop: so a line that is read for one element is still there for its neighbours.
        """
        line = self.lines.line
        outer = [v for v in xs[:-1] if v is not strided]
        count = len(outer) + (2 if strided is not None else 0)
        line(f"#pragma omp for{f' collapse({count})' if count > 1 else ''} schedule(static)")
        for v in outer:
            self.open_loop(v)
        begin, end = "0", None
        if strided is not None:
            bounds = {}
            for v, step in ((strided, STRIP), (xs[-1], STRIP)):
                extent = print_index(self.kernel.ranges[v])
                start = f"{v.name}_tile"
                line(f"for (i64 {start} = 0; {start} < {extent}; {start} += {step}) {{")
                self.lines.indent()
                bounds[v] = start, f"m_minimum<i64>({start} + {step}, {extent})"
            self.open_loop(strided, *bounds[strided])
            begin, end = bounds[xs[-1]]
        line(self.simd())
        self.open_loop(xs[-1], begin, end)
        return count + 1 + (strided is not None)

"""Scatter kernels in C++: stores at computed indices, where iterations may write the
same element."""

from __future__ import annotations

import functools

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Node, loop_invariants
from magpy_like.compiler.codegen.cpp.cpp_expressions import CppEmitter, print_index
from magpy_like.compiler.codegen.cpp.cpp_pointwise import Pointwise
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Symbol
from magpy_like.compiler.ir.ops import Value

#: Iterations from which outer loops are shared among threads rather than the last one.
MIN_SHARED_ITERATIONS = 16


class Scatter(Pointwise):
    """Threads and vectors share only loops whose iterations provably write distinct elements.
    Conflicting iterations run in program order, so results equal a single thread's bit by bit,
    without atomic operations."""

    def print_body(self) -> None:
        *outer, last = self.kernel.xs or [None]
        apart = [v for v in outer if v in self._injective_loops]
        count = self.hint(self.kernel.size(apart))
        if last is None or (count < MIN_SHARED_ITERATIONS and last not in self._injective_loops):
            self._print_serial_loops()
            return
        line = self.lines.line
        line(f"#pragma omp parallel{self.parallel_clause(self.iteration_count())}")
        line("{")
        self.lines.indent()
        self.declare_flags()
        self.declare_locals(scalar=True)
        begin, end = "0", print_index(self.kernel.ranges[last])
        opened = len(outer)
        if count >= MIN_SHARED_ITERATIONS or last not in self._injective_loops:
            many = f" collapse({len(apart)})" if len(apart) > 1 else ""
            line(f"#pragma omp for{many} schedule(static)")
            for v in apart:
                self.open_loop(v)
            outer = [v for v in outer if v not in apart]
        else:
            line("const i64 threads = omp_get_num_threads(), thread = omp_get_thread_num();")
            line(f"const i64 first = part_begin({end}, thread, threads);")
            line(f"const i64 past = part_begin({end}, thread + 1, threads);")
            begin, end = "first", "past"
        for v in outer:
            self.open_loop(v)
        emitter = CppEmitter(self)
        self._hoist(emitter)
        if self._is_contiguous(last):
            line(self.simd_pragma())
        self.open_loop(last, begin, end)
        self._print_element(emitter)
        self.close(1 + opened)
        self.report_flags()
        self.close()

    def _print_serial_loops(self) -> None:
        self.declare_locals(scalar=True)
        self.declare_flags()
        for v in self.kernel.xs:
            self.open_loop(v)
        self._print_element(CppEmitter(self))
        self.close(len(self.kernel.xs))
        self.report_flags()

    def _stores(self) -> list[tuple[Node, Value]]:
        return [(n, v) for n in self.kernel.nodes() for v in n.body.of("store")]

    @functools.cached_property
    def _injective_loops(self) -> set[Symbol]:
        """The loops whose iterations never write the same element, whatever the indices."""
        stores = self._stores()
        written = [v.args[0] for _, v in stores]
        read = {b for node in self.kernel.nodes() for b in node.reads}
        if len(set(written)) < len(written) or read & set(written):
            return set()
        found = set(self.kernel.xs)
        for node, v in stores:
            body = node.body
            ranges = {**body.extents, **self.kernel.ranges}
            found = {x for x in found if index_arithmetic.is_injective(v.args[1], x, ranges)}
        return found

    def _is_contiguous(self, last: Symbol) -> bool:
        """True if iterations of the last loop write consecutive elements."""
        if last not in self._injective_loops or not index_arithmetic.is_nonnegative(
            self.kernel.ranges[last] - 1
        ):
            return False
        for node, v in self._stores():
            body, index = node.body, v.args[1]
            form = index_arithmetic.coefficients(index, [last])
            same = set(loop_invariants(body, last, self.kernel.inputs))
            own = index.free_symbols & set(body.indirect)
            if form is None or form[0].get(last) != sympy.S.One:
                return False
            if not all(body.indirect[s] in same for s in own):
                return False
        return True

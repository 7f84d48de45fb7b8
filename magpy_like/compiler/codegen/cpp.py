"""The C++ printer: one function per kernel, vectorised by ``omp simd``, parallel by OpenMP.

The code of one element is scalar; what is chosen here is which loop becomes the vector:

* *rows*: reduction loops are innermost and contiguous. Outer iterations are shared among
  threads, and each phase is a loop over the row, with OpenMP reductions in vector lanes.
* *columns*: the reduction runs across memory rows, the last outer loop is contiguous. A tile of
  columns keeps its accumulators in an array while the reduction loops run around it.
* *split rows*: too few outer iterations to share: each thread takes a part of the reduction, and
  the parts are combined in a fixed order, so results do not depend on timing.
* pointwise kernels are rows without a reduction, in square tiles where one buffer is contiguous
  along another loop than the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch

from magpy_like.compiler import indexing
from magpy_like.compiler.codegen import special
from magpy_like.compiler.codegen.common import Kernel, Lines, Phase, is_integral, split_levels
from magpy_like.compiler.codegen.cpp_values import (
    CTYPE,
    CppEmitter,
    clause,
    combine,
    identity,
    print_index,
    print_number,
    scan_dtype,
    scan_start,
)
from magpy_like.compiler.errors import Unsupported
from magpy_like.compiler.indexing import Expr, Symbol
from magpy_like.compiler.ops import Value, compute_dtype

GRAIN = 16384  # elements of work below which a second thread costs more than it brings
BLOCK = 4096  # elements summed before their sum is added to the total: bounds rounding error
TILE = 256  # columns per tile, at most
STRIP = 16  # elements of a strided loop run before the next tile: a cache line of float32
_DOUBLE = "f64", "Float_AsDouble"
MAX_SCRATCH = 65536  # rows of a tile that may be kept between phases (64 MiB of float32)

PRELUDE = (Path(__file__).parent / "cpp_prelude.h").read_text()
FLAGS = (
    "-O2",  # -O3 adds little to marked loops, and has taken 30 times as long
    "-fno-tree-vectorize",  # only loops that are marked: saves compile time
    "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fopenmp", "-lmvec", "-lm",
)  # fmt: skip


class CppKernel:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel, hint: Callable[[Expr], int]) -> None:
        self.kernel = kernel
        self.hint = hint
        self.lines = Lines()
        self._count = 0
        self._locals: dict[str, str] = {}  # forwarded buffer -> C variable or array
        self._scratch: set[str] = set()
        self.scans: dict[Value, list[str]] = {}  # scan -> its accumulators
        self._nans: dict[Value, str] = {}  # extremum in the loop being printed -> NaN seen

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # --- where buffers live --------------------------------------------------------------------

    def place(self, buffer: str, index: Expr, lane: str | None) -> str:
        """What to read: memory, scratch row, or a forwarded variable."""
        local = self._locals.get(buffer)
        if local is not None:
            return self._local_place(buffer, local, lane)
        return f"{buffer}[{print_index(index)}]"

    def stores(self, buffer: str, index: Expr, lane: str | None) -> list[str]:
        places = []
        if buffer not in self.kernel.removed:
            places.append(f"{buffer}[{print_index(index)}]")
        local = self._locals.get(buffer)
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

    # --- choosing ------------------------------------------------------------------------------

    def _runs_across_rows(self) -> bool:
        """Is the last outer loop contiguous where the reduction loops are not?"""
        kernel = self.kernel
        if not kernel.rs or not kernel.xs:
            return False
        x, r = kernel.xs[-1], kernel.rs[-1]
        votes = 0
        for phase in kernel.phases:
            for node in phase.inner:
                for v in node.body.values:
                    if v.op not in ("load", "store"):
                        continue
                    form = indexing.coefficients(v.args[1], (*kernel.xs, *kernel.rs))
                    if form is None or not form[0].keys() & set(kernel.rs):
                        continue  # once per outer iteration: no say
                    steps, _ = form
                    votes += steps.get(x) == 1
                    votes -= steps.get(r) == 1
        rows = self.hint(kernel.size(kernel.rs))
        return votes > 0 and not (self._scratch_rows() and rows > MAX_SCRATCH)

    def _has(self, *kinds: str) -> bool:
        return any(v.args[0] in kinds for n in self.kernel.nodes() for v in n.body.of("reduction"))

    # --- printing ------------------------------------------------------------------------------

    def print(self) -> str:
        """The kernel function and its entry for Python."""
        kernel = self.kernel
        self.columns = self._runs_across_rows()
        x_hint, r_hint = self.hint(kernel.size(kernel.xs)), self.hint(kernel.size(kernel.rs))
        self.split = (
            bool(kernel.rs) and not self.columns and x_hint < 4 and r_hint > 4 * GRAIN
            and not kernel.messages and not any(n.body.of("scan") for n in kernel.nodes())
        )  # fmt: skip
        arguments = [
            *(f"const {CTYPE[kernel.dtypes[b]]}* __restrict__ {b}" for b in kernel.inputs),
            *(f"{CTYPE[kernel.dtypes[b]]}* __restrict__ {b}" for b in kernel.outputs),
            *(f"const i64 {s.name}" for s in kernel.size_symbols),
            *(
                f"const {'i64' if is_integral(e) else 'f64'} {kernel.number(e)}"
                for e in kernel.numbers
            ),
        ]
        line = self.lines.line
        line(f"static int {kernel.name}({', '.join(arguments)}) {{")
        self.lines.indent()
        if kernel.messages:
            line("int raised = 0;")
        self._body(x_hint * r_hint)
        line("return raised;" if kernel.messages else "return 0;")
        self.lines.indent(-1)
        line("}")
        self._entry()
        return self.lines.text()

    def _entry(self) -> None:
        kernel = self.kernel
        line = self.lines.line
        line(f"static PyObject* py_{kernel.name}(PyObject*, PyObject* const* a, long) {{")
        self.lines.indent()
        args = []
        buffers = [(b, "const ") for b in kernel.inputs] + [(b, "") for b in kernel.outputs]
        for k, (b, const) in enumerate(buffers):
            ctype = CTYPE[kernel.dtypes[b]]
            line(f"{const}{ctype}* {b} = ({const}{ctype}*)PyLong_AsVoidPtr(a[{k}]);")
            args.append(b)
        for k, s in enumerate(kernel.size_symbols):
            line(f"i64 {s.name} = PyLong_AsLongLong(a[{len(buffers) + k}]);")
            args.append(s.name)
        first = len(buffers) + len(kernel.size_symbols)
        for k, e in enumerate(kernel.numbers):
            kind, convert = ("i64", "Long_AsLongLong") if is_integral(e) else _DOUBLE
            line(f"{kind} {kernel.number(e)} = Py{convert}(a[{first + k}]);")
            args.append(kernel.number(e))
        line("void* state = PyEval_SaveThread();")
        line(f"int raised = {kernel.name}({', '.join(args)});")
        line("PyEval_RestoreThread(state);")
        if kernel.messages:
            table = ", ".join(f'"{m}"' for m in kernel.messages)
            line(f"static const char* const messages[] = {{{table}}};")
            line("if (raised) {")
            line("    PyErr_SetString(PyExc_IndexError, messages[raised - 1]);")
            line("    return nullptr;")
            line("}")
        line("return PyLong_FromLong(raised);")
        self.lines.indent(-1)
        line("}")

    def _body(self, work: int) -> None:
        kernel = self.kernel
        if not kernel.rs and not any(n.inner for n in kernel.nodes()):
            self._pointwise(work)
        elif self.columns:
            self._columns(work)
        else:
            self._rows(work)

    def _parallel(self, work: Expr) -> str:
        """The ``if`` clause, or nothing when it is known to hold."""
        if work.is_Integer:
            return "" if int(work) >= GRAIN else " if(0)"
        return f" if({print_index(work)} >= {GRAIN})"

    def _total(self) -> Expr:
        return self.kernel.size((*self.kernel.xs, *self.kernel.rs))

    def _is_serial(self) -> bool:
        """A scatter may write one place from two iterations."""
        for node in self.kernel.nodes():
            for store in node.body.of("store"):
                if store.args[3] is not None or store.args[1].free_symbols & set(
                    node.body.indirect
                ):
                    return True
        return False

    def _for(self, v: Symbol, begin: str = "0", end: str | None = None) -> None:
        end = end if end is not None else print_index(self.kernel.ranges[v])
        self.lines.line(f"for (i64 {v.name} = {begin}; {v.name} < {end}; ++{v.name}) {{")
        self.lines.indent()

    def _close(self, count: int = 1) -> None:
        for _ in range(count):
            self.lines.indent(-1)
            self.lines.line("}")

    def _flags(self) -> list[str]:
        return [f"bad{k + 1}" for k in range(len(self.kernel.messages))]

    def _declare_flags(self) -> None:
        for flag in self._flags():
            self.lines.line(f"bool {flag} = false;")

    def _report_flags(self) -> None:
        for k, flag in enumerate(self._flags()):
            self.lines.line(f"if ({flag}) __atomic_store_n(&raised, {k + 1}, __ATOMIC_RELAXED);")

    def _simd(self, reductions: Sequence[str] = ()) -> str:
        flags = [f" reduction(|:{', '.join(self._flags())})"] if self._flags() else []
        return "#pragma omp simd" + "".join([*flags, *reductions])

    def _pointwise(self, work: int) -> None:
        kernel, line = self.kernel, self.lines.line
        serial = self._is_serial()
        xs = kernel.xs
        condition = "" if serial else self._parallel(self._total())
        emitter = CppEmitter(self)

        def element() -> None:
            for phase in kernel.phases:
                for node in phase.outer:
                    emitter.run(node.body, node.body.values)

        self._declare_locals(scalar=True)
        if not xs:
            self._declare_flags()
            element()
            self._report_flags()
            return
        if serial:
            self._declare_flags()
            for v in xs:
                self._for(v)
            element()
            self._close(len(xs))
            self._report_flags()
            return
        if len(xs) == 1:
            self._declare_flags()  # shared: the loop itself reduces them
        line(f"#pragma omp parallel{condition}")
        line("{")
        self.lines.indent()
        if len(xs) > 1:
            self._declare_flags()
        if len(xs) == 1:
            line(f"#pragma omp for simd schedule(static){self._flag_clause()}")
            self._for(xs[0])
            depth = 1
        else:
            depth = self._open_nest(xs, self._strided_loop(work))
        element()
        self._close(depth)
        if len(xs) > 1:
            self._report_flags()
        self._close()
        if len(xs) == 1:
            self._report_flags()

    def _strided_loop(self, work: int) -> Symbol | None:
        """The loop, not the last, that some buffer is contiguous in while the last one jumps."""
        *outer, last = self.kernel.xs
        if work < GRAIN:
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
            self._for(v)
        begin, end = "0", None
        if strided is not None:
            bounds = {}
            for v, step in ((strided, STRIP), (xs[-1], STRIP)):
                extent = print_index(self.kernel.ranges[v])
                start = f"{v.name}_tile"
                line(f"for (i64 {start} = 0; {start} < {extent}; {start} += {step}) {{")
                self.lines.indent()
                bounds[v] = start, f"m_minimum<i64>({start} + {step}, {extent})"
            self._for(strided, *bounds[strided])
            begin, end = bounds[xs[-1]]
        line(self._simd())
        self._for(xs[-1], begin, end)
        return count + 1 + (strided is not None)

    def _flag_clause(self) -> str:
        return f" reduction(|:{', '.join(self._flags())})" if self._flags() else ""

    # --- rows ----------------------------------------------------------------------------------

    def _declare_locals(self, scalar: bool) -> None:
        """Variables for outer values that a later phase reads."""
        for buffer, kind in self.kernel.forward.items():
            if kind == "outer":
                ctype = CTYPE[compute_dtype(self.kernel.dtypes[buffer])]
                self._locals[buffer] = f"v_{buffer}"
                self.lines.line(f"{ctype} v_{buffer}{'' if scalar else f'[{TILE}]'};")

    def _scratch_rows(self) -> list[str]:
        return [
            b
            for b, kind in self.kernel.forward.items()
            if kind == "row" and b in self.kernel.removed
        ]

    def _open_scratch(self) -> None:
        row = self.kernel.size(self.kernel.rs)
        for b in self._scratch_rows():
            ctype = CTYPE[self.kernel.dtypes[b]]
            count = print_index(row * TILE if self.columns else row)
            self.lines.line(
                f"{ctype}* __restrict__ row_{b} = ({ctype}*)aligned_alloc(64, "
                f"({count} * sizeof({ctype}) + 63) / 64 * 64);"
            )
            self._locals[b] = f"row_{b}"
            self._scratch.add(b)

    def _close_scratch(self) -> None:
        for b in self._scratch_rows():
            self.lines.line(f"free(row_{b});")

    def _rows(self, work: int) -> None:
        kernel, line = self.kernel, self.lines.line
        xs = kernel.xs
        shared = not self.split
        if shared:
            line(f"#pragma omp parallel{self._parallel(self._total())}")
        line("{")
        self.lines.indent()
        self._declare_flags()
        self._open_scratch()
        if shared and xs:
            many = f" collapse({len(xs)})" if len(xs) > 1 else ""
            line(f"#pragma omp for{many} schedule(static)")
        elif shared:
            line("#pragma omp single")
            line("{")
            self.lines.indent()
        for v in xs:
            self._for(v)
        outer = CppEmitter(self)
        self._declare_locals(scalar=True)
        for phase in kernel.phases:
            if phase.inner:
                self._row_phase(phase, outer)
            for node in phase.outer:
                outer.run(node.body, node.body.values)
        self._close(len(xs) if xs or not shared else 1)
        self._close_scratch()
        self._report_flags()
        self._close()

    def _row_phase(self, phase: Phase, outer: CppEmitter) -> None:
        """One loop over the row: accumulate, then what follows the reductions."""
        accumulators = self._accumulators(phase, "")
        if self.split:
            self._split_row_phase(phase, accumulators)
        else:
            self._row_loops(phase, accumulators, None)
        self._after(phase, outer, accumulators)

    def _accumulators(self, phase: Phase, suffix: str) -> dict[Value, list[tuple[str, Any, str]]]:
        """Declare them: reduction -> [(variable, dtype, kind)], two for kinds with an index."""
        found: dict[Value, list[tuple[str, Any, str]]] = {}
        for node in phase.inner:
            for v in node.body.of("reduction"):
                kind, values = v.args
                name = self.fresh("acc")
                dtype = values[0].dtype
                parts = [(name, dtype, kind)]
                if kind in ("argmax", "argmin"):
                    parts.append((name + "_at", torch.int64, "at"))
                elif kind == "welford":
                    raise Unsupported("welford", "the C++ printer reduces twice instead")
                found[v] = parts
                self._declare_accumulator(parts, suffix)
        return found

    def _declare_scans(self, phase: Phase, suffix: str) -> bool:
        """Declare the accumulators of the phase's scans; are there any?"""
        found = [v for node in phase.inner for v in node.body.of("scan")]
        for v in found:
            kind, dtype = v.args[0], scan_dtype(v.args[0], v.args[1].dtype)
            parts = [(self.fresh("scan"), CTYPE[dtype], scan_start(kind, dtype))]
            if kind in ("argmax", "argmin"):
                parts.append((self.fresh("scan"), "i64", "0"))
            for name, ctype, start in parts:
                self.lines.line(f"{ctype} {name}{suffix}{'' if suffix else f' = {start}'};")
                if suffix:
                    self.lines.line(f"for (i64 l = 0; l < {TILE}; ++l) {name}[l] = {start};")
            self.scans[v] = [name for name, *_ in parts]
        return bool(found)

    def _declare_accumulator(self, parts: list[tuple[str, Any, str]], suffix: str) -> None:
        for name, dtype, kind in parts:
            start = "0x7fffffffffffffffll" if kind == "at" else identity(kind, dtype)
            if suffix:
                self.lines.line(f"{CTYPE[dtype]} {name}{suffix};")
                self.lines.line(f"for (i64 l = 0; l < {TILE}; ++l) {name}[l] = {start};")
            else:
                self.lines.line(f"{CTYPE[dtype]} {name} = {start};")

    def _row_loops(
        self, phase: Phase, accumulators: dict[Value, list[tuple[str, Any, str]]],
        bounds: tuple[str, str] | None,
    ) -> None:  # fmt: skip
        """The loops over the reduction; ``bounds`` limits the first for a thread's part."""
        kernel, line = self.kernel, self.lines.line
        rs = kernel.rs
        scans = self._declare_scans(phase, "")
        if not rs:
            line("{")
            self.lines.indent()
            self._row_element(phase, accumulators, {})
            self._close()
            return
        begin, end = bounds or ("0", print_index(kernel.ranges[rs[0]]))
        opened = 0
        for k, v in enumerate(rs[:-1]):
            self._for(v, *((begin, end) if k == 0 else ("0", None)))
            opened += 1
        last = rs[-1]
        if opened:
            begin, end = "0", print_index(kernel.ranges[last])
        indexed = any(len(parts) > 1 for parts in accumulators.values())
        inner: dict[Value, str] = {}
        blocked = (
            self.hint(kernel.ranges[last]) > BLOCK
            and any(parts[0][2] == "sum" for parts in accumulators.values())
        )  # fmt: skip
        if blocked:
            line(f"for (i64 block = {begin}; block < {end}; block += {BLOCK}) {{")
            self.lines.indent()
            begin, end = "block", f"m_minimum<i64>(block + {BLOCK}, {end})"
            opened += 1
        clauses = []
        for v, parts in accumulators.items():
            if len(parts) > 1:
                continue
            name, dtype, kind = parts[0]
            part = self.fresh("part") if kind == "sum" and dtype.is_floating_point else name
            if part != name:
                line(f"{CTYPE[dtype]} {part} = 0;")
            inner[v] = part
            clauses.append(f" reduction({clause(kind, dtype)}:{part})")
            if kind in ("max", "min") and dtype.is_floating_point:
                # The processor's maximum ignores NaN, and is four times as fast as one that
                # does not: so look for NaN apart.
                flag = self._nans[v] = self.fresh("nan")
                line(f"u32 {flag} = 0;")
                clauses.append(f" reduction(|:{flag})")
        if not indexed and not scans and not self._is_serial():
            line(self._simd(clauses))
        self._for(last, begin, end)
        self._row_element(phase, accumulators, inner)
        self._close()
        for v, part in inner.items():
            name, dtype, _ = accumulators[v][0]
            if v in self._nans:
                line(f"if ({self._nans.pop(v)}) {name} = {print_number(float('nan'), dtype)};")
            if part != name:
                line(f"{name} += {part};")
        self._close(opened)

    def _row_element(
        self, phase: Phase, accumulators: dict[Value, list[tuple[str, Any, str]]],
        inner: dict[Value, str], lane: str | None = None,
    ) -> None:  # fmt: skip
        emitter = CppEmitter(self, lane)
        for node in phase.inner:
            values, reductions, _ = split_levels(node.body)
            emitter.run(node.body, values)
            for v in reductions:
                self._accumulate(v, accumulators[v], emitter, inner.get(v), lane)

    def _accumulate(
        self, v: Value, parts: list[tuple[str, Any, str]], emitter: CppEmitter, part: str | None,
        lane: str | None,
    ) -> None:  # fmt: skip
        at = f"[{lane}]" if lane else ""
        name, dtype, kind = parts[0]
        name = (part or name) + at
        value = emitter.names[v.args[1][0]]
        line = self.lines.line
        if v in self._nans:
            better = ">" if kind == "max" else "<"
            line(f"{self._nans[v]} |= {value} != {value};")
            line(f"{name} = {value} {better} {name} ? {value} : {name};")
            return
        if len(parts) == 1:
            line(f"{name} = {combine(kind, name, f'({CTYPE[dtype]}){value}')};")
            return
        position = emitter.names[v.args[1][1]]
        other = parts[1][0] + at
        better = "greater_first" if kind == "argmax" else "less_first"
        test = self.fresh("better")
        line(f"const bool {test} = {better}<{CTYPE[dtype]}>({value}, {position}, {name}, {other});")
        line(f"{name} = {test} ? {value} : {name};")
        line(f"{other} = {test} ? {position} : {other};")

    def _split_row_phase(
        self, phase: Phase, totals: dict[Value, list[tuple[str, Any, str]]]
    ) -> None:
        """Each thread reduces a part of the first loop; parts are combined in thread order."""
        line, kernel = self.lines.line, self.kernel
        extent = print_index(kernel.ranges[kernel.rs[0]])
        threads = self.fresh("threads")
        line(f"const i64 {threads} = m_minimum<i64>(omp_get_max_threads(), {extent});")
        arrays: dict[str, str] = {}
        for parts in totals.values():
            for name, dtype, _ in parts:
                arrays[name] = f"all_{name}"
                line(f"{CTYPE[dtype]} all_{name}[{threads}];")
        line(f"#pragma omp parallel for schedule(static, 1) num_threads({threads})")
        line(f"for (i64 thread = 0; thread < {threads}; ++thread) {{")
        self.lines.indent()
        line(f"const i64 first = {extent} * thread / {threads};")
        line(f"const i64 last = {extent} * (thread + 1) / {threads};")
        for parts in totals.values():
            self._declare_accumulator(parts, "")
        self._row_loops(phase, totals, ("first", "last"))
        for name, array in arrays.items():
            line(f"{array}[thread] = {name};")
        self._close()
        line(f"for (i64 thread = 0; thread < {threads}; ++thread) {{")
        self.lines.indent()
        for parts in totals.values():
            name, dtype, kind = parts[0]
            new = f"all_{name}[thread]"
            if len(parts) == 1:
                line(f"{name} = {combine(kind, name, new)};")
                continue
            at = parts[1][0]
            better = "greater_first" if kind == "argmax" else "less_first"
            line(f"if ({better}({new}, all_{at}[thread], {name}, {at})) {{")
            line(f"    {name} = {new}; {at} = all_{at}[thread];")
            line("}")
        self._close()

    def _after(
        self, phase: Phase, outer: CppEmitter,
        accumulators: dict[Value, list[tuple[str, Any, str]]], lane: str | None = None,
    ) -> None:  # fmt: skip
        """What reduction nodes compute from their results."""
        for node in phase.inner:
            _, reductions, after = split_levels(node.body)
            for v in reductions:
                name = accumulators[v][-1][0]
                outer.names[v] = f"{name}[{lane}]" if lane else name
            outer.run(node.body, after)

    # --- columns -------------------------------------------------------------------------------

    def _columns(self, work: int) -> None:
        """Tiles of the last outer loop, ``l`` counting columns within one."""
        kernel, line = self.kernel, self.lines.line
        x = kernel.xs[-1]
        extent = print_index(kernel.ranges[x])
        line(
            f"const i64 tile = clip<i64>(({extent} / omp_get_max_threads() + 15) / 16 * 16, 16, "
            f"{TILE});"
        )
        line(f"#pragma omp parallel{self._parallel(self._total())}")
        line("{")
        self.lines.indent()
        self._declare_flags()
        self._open_scratch()
        count = len(kernel.xs)
        line(f"#pragma omp for{f' collapse({count})' if count > 1 else ''} schedule(static)")
        for v in kernel.xs[:-1]:
            self._for(v)
        line(f"for (i64 start = 0; start < {extent}; start += tile) {{")
        self.lines.indent()
        line(f"const i64 width = m_minimum<i64>(tile, {extent} - start);")
        self._declare_locals(scalar=False)
        for phase in kernel.phases:
            self._column_phase(phase, x)
        self._close(count)
        self._close_scratch()
        self._report_flags()
        self._close()

    def _open_lanes(self, x: Symbol) -> None:
        self.lines.line(self._simd())
        self.lines.line("for (i64 l = 0; l < width; ++l) {")
        self.lines.indent()
        self.lines.line(f"const i64 {x.name} = start + l;")

    def _column_phase(self, phase: Phase, x: Symbol) -> None:
        accumulators: dict[Value, list[tuple[str, Any, str]]] = {}
        if phase.inner:
            accumulators = self._accumulators(phase, f"[{TILE}]")
            self._declare_scans(phase, f"[{TILE}]")
            self._column_loops(phase, x, accumulators)
        if phase.outer or any(split_levels(n.body)[2] for n in phase.inner):
            self._open_lanes(x)
            emitter = CppEmitter(self, "l")
            self._after(phase, emitter, accumulators, "l")
            for node in phase.outer:
                emitter.run(node.body, node.body.values)
            self._close()

    def _column_loops(
        self, phase: Phase, x: Symbol, accumulators: dict[Value, list[tuple[str, Any, str]]]
    ) -> None:
        """The reduction loops around one tile; long sums go block by block, as in rows."""
        rs, ranges, line = self.kernel.rs, self.kernel.ranges, self.lines.line
        sums = {
            v: (self.fresh("part"), parts[0][1])
            for v, parts in accumulators.items()
            if parts[0][2] == "sum" and parts[0][1].is_floating_point
        }
        rows = self.hint(ranges[rs[-1]])
        blocked = bool(sums) and rows > 16
        block = min(1024, 1 << (rows.bit_length() // 2))  # about the root: two short sums
        for r in rs[:-1]:
            self._for(r)
        last, end = rs[-1], print_index(ranges[rs[-1]])
        begin = "0"
        if blocked:
            line(f"for (i64 block = 0; block < {end}; block += {block}) {{")
            self.lines.indent()
            for part, dtype in sums.values():
                line(f"{CTYPE[dtype]} {part}[{TILE}] = {{}};")
            begin, end = "block", f"m_minimum<i64>(block + {block}, {end})"
        self._for(last, begin, end)
        self._open_lanes(x)
        inner = {v: part for v, (part, _) in sums.items()} if blocked else {}
        self._row_element(phase, accumulators, inner, "l")
        self._close(2)
        if blocked:
            self._open_lanes(x)
            for v, (part, _) in sums.items():
                line(f"{accumulators[v][0][0]}[l] += {part}[l];")
            self._close(2)
        self._close(len(rs) - 1)


def print_function(kernel: Kernel, hint: Callable[[Expr], int]) -> str:
    """A kernel and its entry, named ``NAME``, with buffers named in order of appearance.

    So kernels that do the same to different buffers (the layers of a model) have one text.
    """
    text = CppKernel(kernel, hint).print()
    order: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        return order.setdefault(match[0], f"p{len(order)}")

    text = re.sub(r"(?<![A-Za-z0-9])(?:buf|arg|const)\d+\b", rename, text)
    return re.sub(rf"\b(py_)?{kernel.name}\b", r"\1NAME", text)


def print_unit(functions: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """A translation unit of (name, text of :func:`print_function`, origins), and the table of
    entries for Python, in order."""
    parts = ['#include "cpp_prelude.h"\n']
    if any(special.uses_special(text) for _, text, _ in functions):
        parts.append(special.declarations())
    for name, text, origins in functions:
        parts.append("".join(f"// {origin}\n" for origin in origins))
        parts.append(re.sub(r"\b(py_)?NAME\b", rf"\1{name}", text))
    rows = [f'    {{"{name}", (void*)py_{name}, 0x80, nullptr}},' for name, *_ in functions]
    parts.append("PyMethodDef magpy_kernels[] = {\n" + "\n".join(rows) + "\n};\n")
    return "\n".join(parts)

"""The C++ printer: one function per kernel, vectorised by ``omp simd``, parallel by OpenMP.

The code of one element is scalar. The loop that becomes the vector loop depends on the class that
prints the kernel's loops, chosen here: :class:`Pointwise`, :class:`Scatter`, :class:`Rows`,
:class:`SplitRows`, :class:`Columns` or :class:`SplitColumns`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from magpy_like.compiler.codegen.common.kernel_plan import (
    Kernel,
    Lines,
    is_integral,
    votes_across_rows,
)
from magpy_like.compiler.codegen.cpp import cpp_special_functions
from magpy_like.compiler.codegen.cpp.cpp_column_reduction import Columns
from magpy_like.compiler.codegen.cpp.cpp_expressions import CTYPE
from magpy_like.compiler.codegen.cpp.cpp_kernel import MIN_PARALLEL_ELEMENTS, CppKernel, is_serial
from magpy_like.compiler.codegen.cpp.cpp_pointwise import Pointwise
from magpy_like.compiler.codegen.cpp.cpp_row_reduction import Rows, SplitRows
from magpy_like.compiler.codegen.cpp.cpp_scatter import Scatter
from magpy_like.compiler.codegen.cpp.cpp_split_column_reduction import SplitColumns, can_split_rows
from magpy_like.compiler.ir.index_arithmetic import Expr

_DOUBLE = "f64", "Float_AsDouble"
#: Rows of a tile that may be kept between phases (64 MiB of float32).
MAX_SCRATCH_ROWS = 65536

PRELUDE = (Path(__file__).parent / "cpp_prelude.h").read_text()
FLAGS = (
    "-O2",  # -O3 adds little to marked loops, and has taken 30 times as long
    "-fno-tree-vectorize",  # only marked loops: saves compile time
    "-fno-tree-pre",  # values carried between iterations would prevent vectorisation
    "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fopenmp", "-lmvec", "-lm",
)  # fmt: skip


def printer_of(kernel: Kernel, hint: Callable[[Expr], int]) -> CppKernel:
    """The printer for the shape of a kernel's loops."""
    if not kernel.rs and not any(n.inner for n in kernel.nodes()):
        return (Scatter if is_serial(kernel) else Pointwise)(kernel, hint)
    if _runs_across_rows(kernel):
        if can_split_rows(kernel, hint):
            return SplitColumns(kernel, hint)
        if not (kernel.scratch_rows() and hint(kernel.size(kernel.rs)) > MAX_SCRATCH_ROWS):
            return Columns(kernel, hint)
    few = (
        hint(kernel.size(kernel.xs)) < 4
        and hint(kernel.size(kernel.rs)) > 4 * MIN_PARALLEL_ELEMENTS
    )
    in_order = kernel.messages or any(n.body.of("scan") for n in kernel.nodes())
    return SplitRows(kernel, hint) if kernel.rs and few and not in_order else Rows(kernel, hint)


def _runs_across_rows(kernel: Kernel) -> bool:
    """True if memory is contiguous along the last outer loop, not along the reduction loops."""
    if not kernel.rs or not kernel.xs:
        return False
    nodes = [node for phase in kernel.phases for node in phase.inner]
    votes = votes_across_rows(nodes, kernel.xs, kernel.rs, (kernel.xs[-1], kernel.rs[-1]))
    return votes > 0


def _print_loops(kernel: Kernel, hint: Callable[[Expr], int]) -> str:
    """The kernel as a C++ function that returns 0, or the number of the check that failed."""
    arguments = [
        *(f"const {CTYPE[kernel.dtypes[b]]}* __restrict__ {b}" for b in kernel.inputs),
        *(f"{CTYPE[kernel.dtypes[b]]}* __restrict__ {b}" for b in kernel.outputs),
        *(f"const i64 {s.name}" for s in kernel.size_symbols),
        *(f"const {'i64' if is_integral(e) else 'f64'} {kernel.number(e)}" for e in kernel.numbers),
    ]
    printer = printer_of(kernel, hint)
    line = printer.lines.line
    line(f"static int {kernel.name}({', '.join(arguments)}) {{")
    printer.lines.indent()
    if kernel.messages:
        line("int raised = 0;")
    printer.print_body()
    line("return raised;" if kernel.messages else "return 0;")
    printer.lines.indent(-1)
    line("}")
    return printer.lines.text()


def _print_entry(kernel: Kernel) -> str:
    """The entry called by Python, with addresses, sizes and numbers."""
    lines = Lines()
    line = lines.line
    line(f"static PyObject* py_{kernel.name}(PyObject*, PyObject* const* a, long) {{")
    lines.indent()
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
    for k, (error, message) in enumerate(kernel.messages):
        line(f"if (raised == {k + 1}) {{")
        line(f'    PyErr_SetString(PyExc_{error}, "{message}");')
        line("    return nullptr;")
        line("}")
    line("return PyLong_FromLong(raised);")
    lines.indent(-1)
    line("}")
    return lines.text()


def print_function(kernel: Kernel, hint: Callable[[Expr], int]) -> str:
    """A kernel and its entry, named ``NAME``, with buffers named in order of appearance.

    Kernels that compute the same on different buffers (the layers of a model) share one text.
    """
    text = _print_loops(kernel, hint) + _print_entry(kernel)
    order: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        return order.setdefault(match[0], f"p{len(order)}")

    text = re.sub(r"(?<![A-Za-z0-9])(?:buf|arg|const)\d+\b", rename, text)
    return re.sub(rf"\b(py_)?{kernel.name}\b", r"\1NAME", text)


def print_unit(functions: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """A translation unit of functions (name, text of :func:`print_function`, origins).

    It ends with the table of entries for Python, in order.
    """
    parts = ['#include "cpp_prelude.h"\n']
    if any(cpp_special_functions.uses_special(text) for _, text, _ in functions):
        parts.append(cpp_special_functions.declarations())
    for name, text, origins in functions:
        parts.append("".join(f"// {origin}\n" for origin in origins))
        parts.append(re.sub(r"\b(py_)?NAME\b", rf"\1{name}", text))
    rows = [f'    {{"{name}", (void*)py_{name}, 0x80, nullptr}},' for name, *_ in functions]
    parts.append("PyMethodDef magpy_kernels[] = {\n" + "\n".join(rows) + "\n};\n")
    return "\n".join(parts)

"""Rows of which elements are taken at positions that are the same in each: enlarged, padded.

A processor gathers little faster than it loads one element after the other. But of a strip of such
positions all are near each other, mostly: then two vectors hold all of the elements, and are
permuted. How, is found out once for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, uniform
from magpy_like.compiler.codegen.cpp.cpp_expressions import CppEmitter, print_index
from magpy_like.compiler.codegen.cpp.cpp_kernel import STRIP
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Body, Value

ROWS = 16  # that have the same positions, from which it pays to look at them first
LONGEST = 4096  # positions that are looked at


@dataclass(frozen=True, eq=False)
class Taking:
    """A load of ``body`` whose positions in its row, of ``extent`` elements, are ``table``'s."""

    load: Value
    body: Body
    position: Symbol
    table: Value
    extent: int


def takings(kernel: Kernel, loop: Symbol, rows: int) -> list[Taking]:
    """The loads in ``loop`` that can be done so, if ``rows`` share their positions."""
    extent = kernel.ranges[loop]
    if rows < ROWS or not extent.is_Integer or not STRIP <= int(extent) <= LONGEST:
        return []
    found = []
    for node in kernel.nodes():
        if not node.body.indirect:
            continue
        same = set(uniform(node.body, loop, kernel.inputs))
        for load in node.body.of("load"):
            taking = _taking(kernel, loop, node.body, load, same)
            if taking is not None:
                found.append(taking)
    return found


def _taking(
    kernel: Kernel, loop: Symbol, body: Body, load: Value, same: set[Value]
) -> Taking | None:
    """``same`` are the values that do not move with the loop."""
    buffer, index, mask = load.args
    dtype = kernel.dtypes[buffer]
    if mask is not None or dtype.itemsize != 4 or buffer not in kernel.inputs:
        return None
    moving = [j for j in index.free_symbols & set(body.indirect) if body.indirect[j] not in same]
    form = index_arithmetic.coefficients(index, [loop, *moving])
    if len(moving) != 1 or form is None or form[0] != {moving[0]: 1}:
        return None
    table, extent = body.indirect[moving[0]], body.extents[moving[0]]
    if table.op != "load" or table.args[1] != loop or table.args[2] is not None:
        return None
    if table.args[0] not in kernel.inputs or kernel.dtypes[table.args[0]] != torch.int64:
        return None
    return Taking(load, body, moving[0], table, int(extent)) if extent.is_Integer else None


def row_of(taking: Taking, emitter: CppEmitter) -> str:
    """The first element of the row that is taken from; ``emitter`` has named what is the same in
    all of it."""
    buffer, index, _ = taking.load.args
    names: dict[Symbol, Expr] = {taking.position: sympy.S.Zero}
    for j in index.free_symbols & set(taking.body.indirect) - {taking.position}:
        names[j] = sympy.Symbol(str(emitter.outside[taking.body.indirect[j]]), integer=True)
    return f"{buffer}[{print_index(index.xreplace(names))}]"

"""Row gathers in C++: rows whose elements are gathered at the same positions (resizing, padding).

A processor gathers hardly faster than it loads one element after another. But the positions of a
strip are mostly close together: then two vectors hold all its elements and a permutation selects
them. The permutations are computed once for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, loop_invariants
from magpy_like.compiler.codegen.cpp.cpp_expressions import CppEmitter, print_index
from magpy_like.compiler.codegen.cpp.cpp_streaming import STRIP_ELEMENTS
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Body, Value

#: Rows with the same positions from which analysing the positions pays.
MIN_ROWS = 16
#: Positions analysed, at most.
MAX_POSITIONS = 4096


@dataclass(frozen=True, eq=False)
class RowGather:
    """A load of ``body`` at the positions of ``table`` in its row of ``extent`` elements."""

    load: Value
    body: Body
    position: Symbol
    table: Value
    extent: int


def find_row_gathers(kernel: Kernel, loop: Symbol, rows: int) -> list[RowGather]:
    """The row gathers in ``loop``, if ``rows`` with the same positions are enough."""
    extent = kernel.ranges[loop]
    if (
        rows < MIN_ROWS
        or not extent.is_Integer
        or not STRIP_ELEMENTS <= int(extent) <= MAX_POSITIONS
    ):
        return []
    found = []
    for node in kernel.nodes():
        if not node.body.indirect:
            continue
        same = set(loop_invariants(node.body, loop, kernel.inputs))
        for load in node.body.of("load"):
            gather = _row_gather(kernel, loop, node.body, load, same)
            if gather is not None:
                found.append(gather)
    return found


def _row_gather(
    kernel: Kernel, loop: Symbol, body: Body, load: Value, same: set[Value]
) -> RowGather | None:
    """``same``: the loop-invariant values."""
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
    return RowGather(load, body, moving[0], table, int(extent)) if extent.is_Integer else None


def row_start(gather: RowGather, emitter: CppEmitter) -> str:
    """The first element of the gathered row; ``emitter`` has named the loop invariants."""
    buffer, index, _ = gather.load.args
    names: dict[Symbol, Expr] = {gather.position: sympy.S.Zero}
    for j in index.free_symbols & set(gather.body.indirect) - {gather.position}:
        names[j] = sympy.Symbol(str(emitter.hoisted[gather.body.indirect[j]]), integer=True)
    return f"{buffer}[{print_index(index.xreplace(names))}]"

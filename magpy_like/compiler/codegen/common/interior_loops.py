"""Interiors of loops: the iterations in which every mask of a kernel's loads has a known value.

A printer splits the loop there and prints the interior without masks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import sympy

from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.index_arithmetic import Expr, Symbol
from magpy_like.compiler.ir.ops import Value
from magpy_like.compiler.ir.size_names import expr
from magpy_like.torch_compat.tracing.symbolic_expressions import FloorDiv


@dataclass
class Interior:
    """Iterations from ``begin`` to ``end`` ("" for the last) in which conditions have the ``known``
    values, provided that the loop-invariant ones have their ``uniform`` values.

    For a loop of symbolic length, the smallest of ``ends`` is the end, and the loop may be shorter
    than ``begin``.
    """

    begin: int
    end: str
    uniform: dict[Value, bool]
    known: dict[Value, bool]
    ends: list[Expr] = field(default_factory=list)


def find_interior(
    kernel: Kernel, loop: Symbol, uniform: Collection[Value], hint: Callable[[Expr], int]
) -> Interior | None:
    """The iterations around the middle of ``loop`` in which no mask of ``kernel`` changes its
    value.

    ``uniform``: the loop-invariant conditions; they are assumed to have the values of the middle of
    the outer loops. (In the interior of an image all tests for being inside the image hold, and no
    test for being in its border.) ``hint`` evaluates sizes. None if no mask has a known value.
    """
    conditions = list(dict.fromkeys(c for mask in _masks(kernel) for c in _conjuncts(mask)))
    extent = kernel.ranges[loop]
    same = {c: _holds_in_the_middle(c, kernel, hint) for c in conditions if c in uniform}
    begin, end, ends, known = 0, extent, dict[Expr, None](), dict(same)
    middle = hint(extent) // 2
    for condition in conditions:
        edge = _edge(condition, loop)
        if edge is None or condition in known:
            continue
        before = hint(edge) <= middle
        if before and edge.is_Integer:
            begin = max(begin, int(edge))
        elif not before and not extent.is_Integer:
            ends[edge] = None
        elif not before and edge.is_Integer:
            end = min(end, edge)
        else:
            continue
        known[condition] = before == (condition.op == "ge")
    if not known:
        return None
    if not extent.is_Integer:
        return Interior(begin, "", same, known, list(ends))
    if end - begin < int(extent) // 2:  # mostly border
        begin, end, known = 0, extent, dict(same)
    return Interior(begin, "" if end == extent else str(end), same, known) if known else None


def _holds_in_the_middle(condition: Value, kernel: Kernel, hint: Callable[[Expr], int]) -> bool:
    """True if a condition holds in the middle of the loop it tests, or is unknown there."""
    for loop in kernel.xs:
        edge = _edge(condition, loop)
        if edge is not None and not edge.free_symbols & set(kernel.xs):
            before = hint(edge) <= hint(kernel.ranges[loop]) // 2
            return before == (condition.op == "ge")
    return True


def _masks(kernel: Kernel) -> list[Value]:
    loads = [v for node in kernel.nodes() for v in node.body.of("load")]
    return [v.args[2] for v in loads if v.args[2] is not None]


def _conjuncts(mask: Value) -> list[Value]:
    if mask.op != "logical_and":
        return [mask]
    return [c for part in mask.args for c in _conjuncts(part)]


def _edge(condition: Value, loop: Symbol) -> Expr | None:
    """First iteration in which ``a * loop + b >= c`` holds, or ``<`` fails; None for other
    conditions."""
    if condition.op not in ("ge", "lt"):
        return None
    left, right = (_expression(v) for v in condition.args)
    if left is None or right is None:
        return None
    form = index_arithmetic.coefficients(left - right, [loop])
    if form is None:
        return None
    step = form[0].get(loop)
    if step is None or not step.is_Integer or step <= 0:
        return None
    if form[1].is_Integer:
        return sympy.Integer(max(0, -(int(form[1]) // int(step))))
    return FloorDiv(step - 1 - form[1], step)


def _expression(value: Value) -> Expr | None:
    if value.op == "index_expr":
        return value.args[0]
    return expr(value.args[0]) if value.op == "constant" else None

"""Where in a loop all the masks of a kernel's loads are known to hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from magpy_like.compiler import indexing
from magpy_like.compiler.codegen.common import Kernel
from magpy_like.compiler.indexing import Expr, Symbol
from magpy_like.compiler.ops import Value


@dataclass
class Interior:
    """Iterations from ``begin`` to ``end`` ("" for the last) of a loop, in which the conditions
    ``holding`` hold provided that those in ``uniform`` do, which are the same in all iterations.
    """

    begin: int
    end: str
    uniform: list[Value]
    holding: set[Value]


def interior(kernel: Kernel, loop: Symbol, uniform: Collection[Value]) -> Interior | None:
    """Where the masks of ``kernel`` hold in ``loop``; None when it has none or that is unknown."""
    conditions = list(dict.fromkeys(c for mask in _masks(kernel) for c in _conjuncts(mask)))
    extent = kernel.ranges[loop]
    same = [c for c in conditions if c in uniform]
    begin, end, holding = 0, extent, set(same)
    for condition in conditions:
        edge = _edge(condition, loop)
        if edge is None or condition in holding:
            continue
        holding.add(condition)
        if condition.op == "ge":
            begin = max(begin, edge)
        elif extent.is_Integer:
            end = min(end, edge)
        else:
            holding.discard(condition)
    if not holding:
        return None
    if not extent.is_Integer:
        return Interior(0, "", same, set(same)) if same else None
    if end - begin < int(extent) // 2:  # mostly border
        begin, end, holding = 0, extent, set(same)
    return Interior(begin, "" if end == extent else str(end), same, holding) if holding else None


def _masks(kernel: Kernel) -> list[Value]:
    loads = [v for node in kernel.nodes() for v in node.body.of("load")]
    return [v.args[2] for v in loads if v.args[2] is not None]


def _conjuncts(mask: Value) -> list[Value]:
    if mask.op != "logical_and":
        return [mask]
    return [c for part in mask.args for c in _conjuncts(part)]


def _edge(condition: Value, loop: Symbol) -> int | None:
    """For ``a * loop + b >= c`` the first iteration in which it holds, for ``<`` the first in which
    it does not; None for any other condition."""
    if condition.op not in ("ge", "lt"):
        return None
    left, right = (_expression(v) for v in condition.args)
    if left is None or right is None:
        return None
    form = indexing.coefficients(left - right, [loop])
    if form is None or not form[1].is_Integer:
        return None
    step = form[0].get(loop)
    if step is None or not step.is_Integer or step <= 0:
        return None
    return max(0, -(int(form[1]) // int(step)))


def _expression(value: Value) -> Expr | None:
    if value.op == "index_expr":
        return value.args[0]
    return indexing.expr(value.args[0]) if value.op == "constant" else None

"""Special functions, and integer functions that loop per element."""

from __future__ import annotations

from typing import Any

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import SPECIAL, ops
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import Kind, aten, elementwise, lower


def _packet(name: str) -> Any:
    """The ATen operator of a special function; some are in the special namespace only."""
    return getattr(aten, name, None) or getattr(aten, f"special_{name}")


def _lower_special(name: str) -> None:
    @lower(_packet(name))
    def lowering(graph: Graph, *args: Any) -> Box:
        boxes = [a for a in args if isinstance(a, Box)]
        if not boxes or any(b.device.type != "cpu" for b in boxes):
            raise Unsupported(name, "its library is for CPUs only")
        if name == "polygamma":
            args = args[::-1]  # ATen takes (n, x)
        return elementwise(
            graph, args, Kind.INT_TO_FLOAT, lambda *v: getattr(ops, f"special_{name}")(*v),
            expensive=True,
        )  # fmt: skip


for _name in SPECIAL:
    _lower_special(_name)


def _lower_integer(name: str) -> None:
    @lower(getattr(aten, name).default)
    def lowering(graph: Graph, a: Any, b: Any) -> Box:
        boxes = [x for x in (a, b) if isinstance(x, Box)]
        if any(x.device.type != "cpu" for x in boxes):
            raise Unsupported(name, "only C++ kernels can loop per element")
        return elementwise(
            graph, [a, b], Kind.DEFAULT, lambda x, y: getattr(ops, name)(x, y), expensive=True
        )


for _name in ("gcd", "lcm"):
    _lower_integer(_name)

"""Text for people of the loop IR and the schedule: the trace's ``ir`` and ``schedule`` stages."""

from __future__ import annotations

from typing import Any

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Node
from magpy_like.compiler.ir.loop_ir import LoopOp
from magpy_like.compiler.ir.ops import Body, Value
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.scheduling.scheduler import Schedule


def format_body(b: Body) -> str:
    """A loop body: one line per value, ``%n = op(...)``, under its loops."""
    names: dict[Value, str] = {}

    def show(arg: Any) -> str:
        if isinstance(arg, Value):
            return names[arg]
        if isinstance(arg, tuple):
            return ", ".join(show(a) for a in arg)
        return str(arg)

    loops = " ".join(f"{v}<{b.ranges[v]}" for v in (*b.xs, *b.rs)) or "once"
    lines = [f"  for {loops}:"]
    symbols = {value: symbol for symbol, value in b.indirect.items()}
    for k, value in enumerate(b.values):
        names[value] = f"%{k}"
        note = f"  # index {symbols[value]}" if value in symbols else ""
        lines.append(f"    %{k}: {str(value.dtype)[6:]} = {value.op}({show(value.args)}){note}")
    return "\n".join(lines)


def format_graph(g: Graph) -> str:
    """A lowered graph: buffers, then operations in program order, then fallbacks to ATen."""
    lines = ["buffers"]
    for buffer in g.buffers.values():
        shape = f"{tuple(buffer.size)} strides {tuple(buffer.stride)}"
        lines.append(f"  {buffer.name}: {buffer.kind} {str(buffer.dtype)[6:]} {shape}")
    for operation in g.operations:
        lines.append("")
        lines += [f"  # {origin}" for origin in operation.origins]
        if isinstance(operation, LoopOp):
            lines.append(f"{operation.name}: loops writing {', '.join(operation.writes)}")
            lines.append(format_body(operation.body))
        else:
            lines.append(
                f"{operation.name}: {operation.target} reading {', '.join(operation.reads)} "
                f"writing {', '.join(operation.writes)}"
            )
    counts = sorted(g.fallbacks.items(), key=lambda item: -item[1])
    lines += ["", "through ATen: " + (", ".join(f"{n} x {c}" for n, c in counts) or "nothing")]
    return "\n".join(lines) + "\n"


def format_schedule(s: Schedule) -> str:
    """A schedule: steps in the order they run, then every fusion decision with its reason."""
    lines = ["steps"]
    for step in s.steps:
        if not isinstance(step, Kernel):
            lines.append(f"  {step.target}  ({step.name})")
            continue
        loops = " ".join(f"{v}<{r}" for v, r in step.ranges.items())
        lines.append(f"  {step.name}: for {loops or 'once'}")
        for k, phase in enumerate(step.phases):
            lines.append(
                f"    phase {k}: per element {_names(phase.inner)}; after {_names(phase.outer)}"
            )
        if step.removed:
            lines.append(f"    never stored: {', '.join(sorted(step.removed))}")
    lines += ["", "fusion"]
    for d in s.decisions:
        verdict = "fused" if d.fused else "not fused"
        lines.append(f"  {'+'.join(d.first)} with {'+'.join(d.second)}: {verdict}: {d.reason}")
    return "\n".join(lines) + "\n"


def _names(nodes: list[Node]) -> str:
    return "+".join(n.name for n in nodes) or "nothing"

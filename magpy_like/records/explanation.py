"""``explain``: what the monitor saw of one run, for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from magpy_like.monitor.recording import SplitPoint


@dataclass
class Explanation:
    """Graphs, guards, side effects, split points and generated source of one program run."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    split_points: list[SplitPoint] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    side_effects: list[str] = field(default_factory=list)
    source: str = ""

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    def __str__(self) -> str:
        lines = []
        for i, graph in enumerate(self.graphs):
            operators = sum(n.op.startswith("call") for n in graph.graph.nodes)
            inputs = sum(n.op == "placeholder" for n in graph.graph.nodes)
            lines.append(f"graph {i}: {operators} operators, {inputs} tensors in")
        if not self.graphs:
            lines.append("no operator graph")
        lines.append(_listed("split points", self.split_points))
        lines.append(_listed("guards", self.guards))
        lines.append(_listed("side effects", self.side_effects))
        return "\n".join(lines)


def _listed(title: str, items: list[Any], most: int = 20) -> str:
    lines = [f"{title}: {len(items) or 'none'}"]
    lines += [f"  {item}" for item in items[:most]]
    if len(items) > most:
        lines.append(f"  … and {len(items) - most} more")
    return "\n".join(lines)


def explain_run(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """Monitor one run of ``target`` and collect what its record would be."""
    from magpy_like.records.dispatch import Dispatcher

    dispatcher = Dispatcher(target, backend="eager")
    dispatcher.call(args, kwargs)
    report = Explanation(split_points=list(dispatcher.split_points))
    for record in dispatcher.records:
        if record.graph is not None:
            report.graphs.append(record.graph)
        report.guards += record.guards
        report.side_effects += record.side_effects
        report.source += f"{record.guard_source}\n{record.mock_source}"
    return report

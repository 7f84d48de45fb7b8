"""Interface between the public functions and the dispatchers: what they return, and all of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from magpy_like.config import config
from magpy_like.graph_operators.node_metadata import AS_IS
from magpy_like.split_points import SplitPoint
from magpy_like.torch_compat.tracing.symbolic_tracing import is_symbolically_traced

if TYPE_CHECKING:
    from magpy_like.compiler.runtime.cuda_graphs.capture_reports import CaptureReport


class CacheInfo(NamedTuple):
    """Counters of a compiled function, like those of ``functools.lru_cache``.

    Attributes:
        hits: calls that records served, without a monitor run, by compiled graphs; programs without
            operators have none to compile.
        misses: calls with a monitor run.
        records: the records kept.
        graphs: the distinct operator graphs; a backend may compile one for several sizes.
        native: calls that ran the program as it is, without a monitor.
        uncompiled: calls that records served, whose graphs ran operator by operator.
    """

    hits: int
    misses: int
    records: int
    graphs: int
    native: int = 0
    uncompiled: int = 0


class Segment(NamedTuple):
    """One segment of a program: its begin, its operator graph, and the split that ends it."""

    begins: str
    graph: torch.fx.GraphModule | None
    ends_at: SplitPoint | None


@dataclass
class Explanation:
    """The records of one program run, for people: ``str()`` is a report.

    Attributes:
        segments: in the order of execution.
        graphs: the operator graphs of the segments, each once.
        split_points: each once.
        guards: the conditions of the guards, in words.
        side_effects: the effects that the mocks repeat, in words.
        lifted: the sizes and numbers that may vary between calls.
        generalised: those of them that have caused misses before.
        learnt: the fast paths that the run disproved; later recordings skip them. Explain a
            compiled function after a call to see the result.
        cuda_graphs: for each compiled graph of a compiled target on a GPU, how often it is captured
            as a CUDA graph, or why it is not.
        source: the generated source of guards and mocks.
    """

    segments: list[Segment] = field(default_factory=list)
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    split_points: list[SplitPoint] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    side_effects: list[str] = field(default_factory=list)
    lifted: list[str] = field(default_factory=list)
    generalised: list[str] = field(default_factory=list)
    learnt: list[str] = field(default_factory=list)
    cuda_graphs: list[CaptureReport] = field(default_factory=list)
    source: str = ""

    @property
    def graph_count(self) -> int:
        """The number of operator graphs."""
        return len(self.graphs)

    def __str__(self) -> str:
        lines = []
        for i, segment in enumerate(self.segments):
            lines.append(f"segment {i}: {segment.begins}: {_summarise_graph(segment.graph)}")
            lines += _operators_as_they_are(segment.graph)
            if segment.ends_at is not None:
                lines.append(f"  up to {segment.ends_at.filename}:{segment.ends_at.lineno}")
        if not self.segments:
            lines.append("no operator graph")
        lines.append(_split_points_by_reason(self.split_points))
        if self.learnt:
            lines.append(_listed("fast paths that later recordings skip", self.learnt))
        lines.append(_listed("lifted", self.lifted))
        lines.append(_listed("generalised", self.generalised))
        lines.append(_listed("guards", self.guards))
        lines.append(_listed("side effects", self.side_effects))
        if self.cuda_graphs:
            lines.append(_listed("compiled graphs on a GPU", self.cuda_graphs))
        return "\n".join(lines)


def _summarise_graph(graph: torch.fx.GraphModule | None) -> str:
    if graph is None:
        return "no operators"
    operators = sum(n.op.startswith("call") for n in graph.graph.nodes)
    inputs = sum(n.op == "placeholder" for n in graph.graph.nodes)
    return f"graph of {operators} operators, {inputs} inputs"


def _operators_as_they_are(graph: torch.fx.GraphModule | None) -> list[str]:
    """A line for each operator that no backend receives, with the reason."""
    return [
        f"  {node.name} runs as it is: {node.meta[AS_IS]}"
        for node in (graph.graph.nodes if graph is not None else ())
        if AS_IS in node.meta
    ]


def _split_points_by_reason(points: list[SplitPoint]) -> str:
    """The split points under the titles of their reasons, each remedy once a reason."""
    lines = [f"split points: {len(points) or 'none'}"]
    for reason in dict.fromkeys(point.reason for point in points):
        lines.append(f"  {reason.title}:")
        of_reason = [point for point in points if point.reason is reason]
        lines += [f"    {point}" for point in of_reason[: config.max_listed_items]]
        if len(of_reason) > config.max_listed_items:
            lines.append(f"    … and {len(of_reason) - config.max_listed_items} more")
        remedies = dict.fromkeys(
            point.cause.remedy for point in of_reason[: config.max_listed_items]
        )
        lines += [f"      to remove it: {remedy}" for remedy in remedies if remedy]
    return "\n".join(lines)


def _listed(title: str, items: list[Any]) -> str:
    lines = [f"{title}: {len(items) or 'none'}"]
    lines += [f"  {item}" for item in items[: config.max_listed_items]]
    if len(items) > config.max_listed_items:
        lines.append(f"  … and {len(items) - config.max_listed_items} more")
    return "\n".join(lines)


def native_call(dispatcher: Any) -> Callable[..., Any]:
    """What runs a call as it is: the target.

    While ``torch.fx`` traces, it is the call of the compiled object, which fx looks up among the
    submodules. ``on_miss`` of the object's dispatcher returns that, and is called at each miss.
    """
    if dispatcher.on_miss is None:
        return cast(Callable[..., Any], dispatcher.target)
    of_object = dispatcher.on_miss()
    return cast(Callable[..., Any], of_object if is_symbolically_traced() else dispatcher.target)


dispatchers: weakref.WeakSet[Any] = weakref.WeakSet()
"""All dispatchers, of every kind."""


def reset_all() -> None:
    """Discard the records of every compiled function."""
    for dispatcher in list(dispatchers):
        dispatcher.reset()

"""What the public functions need of a compiled function, with or without a monitor.

The monitor needs a C++ compiler once. Where there is none, programs run eagerly and say so.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from magpy_like.errors import CompileError
from magpy_like.split_points import SplitPoint
from magpy_like.split_reasons import SplitCause, SplitReason

MAX_LISTED = 20
"""The number of items of one kind that the text of an explanation lists."""


class CacheInfo(NamedTuple):
    """As ``functools`` has it: a hit needed no monitor run; ``graphs`` counts operator
    graphs, each of which a backend may compile for several sizes."""

    hits: int
    misses: int
    records: int
    graphs: int


class Segment(NamedTuple):
    """What a program does between two splits: where it begins, its graph, the split behind it."""

    begins: str
    graph: torch.fx.GraphModule | None
    ends_at: SplitPoint | None


@dataclass
class Explanation:
    """Graphs, guards, side effects, split points and generated source of one program run.

    ``segments`` are in the order in which the program came to them.
    ``lifted`` are the sizes and numbers that the records leave open; ``generalised`` those that
    have caused misses before. ``learnt`` says why the run could not be recorded as it went: the
    next call is recorded otherwise, and to explain a compiled function after it shows how.
    """

    segments: list[Segment] = field(default_factory=list)
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    split_points: list[SplitPoint] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    side_effects: list[str] = field(default_factory=list)
    lifted: list[str] = field(default_factory=list)
    generalised: list[str] = field(default_factory=list)
    learnt: list[str] = field(default_factory=list)
    source: str = ""

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    def __str__(self) -> str:
        lines = []
        for i, segment in enumerate(self.segments):
            lines.append(f"segment {i}: {segment.begins}: {_described(segment.graph)}")
            if segment.ends_at is not None:
                lines.append(f"  up to {segment.ends_at.filename}:{segment.ends_at.lineno}")
        if not self.segments:
            lines.append("no operator graph")
        lines.append(_split_points_by_reason(self.split_points))
        if self.learnt:
            lines.append(_listed("to be recorded otherwise from the next call on", self.learnt))
        lines.append(_listed("lifted", self.lifted))
        lines.append(_listed("generalised", self.generalised))
        lines.append(_listed("guards", self.guards))
        lines.append(_listed("side effects", self.side_effects))
        return "\n".join(lines)


def _described(graph: torch.fx.GraphModule | None) -> str:
    if graph is None:
        return "no operators"
    operators = sum(n.op.startswith("call") for n in graph.graph.nodes)
    inputs = sum(n.op == "placeholder" for n in graph.graph.nodes)
    return f"graph of {operators} operators, {inputs} tensors in"


def _split_points_by_reason(points: list[SplitPoint]) -> str:
    """The split points under the titles of their reasons, each remedy once a reason."""
    lines = [f"split points: {len(points) or 'none'}"]
    for reason in dict.fromkeys(point.reason for point in points):
        lines.append(f"  {reason.title}:")
        of_reason = [point for point in points if point.reason is reason]
        lines += [f"    {point}" for point in of_reason[:MAX_LISTED]]
        if len(of_reason) > MAX_LISTED:
            lines.append(f"    … and {len(of_reason) - MAX_LISTED} more")
        remedies = dict.fromkeys(point.cause.remedy for point in of_reason[:MAX_LISTED])
        lines += [f"      to remove it: {remedy}" for remedy in remedies if remedy]
    return "\n".join(lines)


def _listed(title: str, items: list[Any]) -> str:
    lines = [f"{title}: {len(items) or 'none'}"]
    lines += [f"  {item}" for item in items[:MAX_LISTED]]
    if len(items) > MAX_LISTED:
        lines.append(f"  … and {len(items) - MAX_LISTED} more")
    return "\n".join(lines)


class Eager:
    """Stands for a dispatcher where the monitor cannot be built: every call runs the program."""

    def __init__(self, target: Callable[..., Any], reason: str, **settings: Any) -> None:
        self.target = target
        self.reason = reason
        for name, value in settings.items():
            setattr(self, name, value)
        self.misses = 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.misses += 1
        return self.target(*args, **kwargs)

    def cache_info(self) -> CacheInfo:
        return CacheInfo(0, self.misses, 0, 0)

    def explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], known: Any = None
    ) -> Explanation:
        self.target(*args, **kwargs)
        cause = SplitCause(SplitReason.NO_MONITOR, self.reason)
        return Explanation(split_points=[SplitPoint("everything", "?", 0, *cause)])

    def reset(self) -> None:
        self.misses = 0


@functools.cache
def _no_monitor() -> str | None:
    """Why the monitor cannot run here; None when it can. Warns the first time."""
    try:
        import magpy_like.native  # noqa: F401 (builds the helper)
    except (CompileError, ImportError, OSError) as error:
        reason = str(error)
        warnings.warn(f"magpy_like: programs run eagerly: {reason}", stacklevel=5)
        return reason
    return None


def make_dispatcher(target: Callable[..., Any], **settings: Any) -> Any:
    """The dispatcher of a compiled function, or one that always runs it."""
    reason = _no_monitor()
    if reason is not None:
        return Eager(target, reason, **settings)
    from magpy_like.records.dispatcher import Dispatcher

    return Dispatcher(target, **settings)


def reset_all() -> None:
    """Forget the records of every compiled function."""
    if _no_monitor() is None:
        from magpy_like.records.dispatcher import reset_all as reset_dispatchers

        reset_dispatchers()

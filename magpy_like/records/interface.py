"""Interface between the public functions and the dispatchers, with or without a monitor.

The monitor needs the native helper. Where that cannot be used, programs run natively after one
warning.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from magpy_like.compile_modes import compile_settings
from magpy_like.config import config
from magpy_like.errors import MagpyWarning
from magpy_like.native import helper_status
from magpy_like.records.record_limits import Limits
from magpy_like.split_points import SplitPoint
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_compat.symbolic_tracing import is_symbolically_traced

if TYPE_CHECKING:
    from magpy_like.compiler.runtime.cuda_graphs.capture_reports import CaptureReport


class CacheInfo(NamedTuple):
    """Counters of a compiled function, like those of ``functools.lru_cache``.

    Attributes:
        hits: calls that records served, without a monitor run.
        misses: calls with a monitor run.
        records: the records kept.
        graphs: the distinct operator graphs; a backend may compile one for several sizes.
        native: calls that ran the program as it is, without a monitor.
        uncompiled: those of the hits that ran no compiled graph: the program has no operators, or
            its graph runs operator by operator.
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


class UncompiledProgram:
    """The dispatcher's interface where the native helper cannot be used: calls run the program."""

    def __init__(
        self,
        target: Callable[..., Any],
        reason: str,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str | Callable[..., Any] = "magpy",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Takes the arguments of ``compile``, and the reason why nothing can be monitored.

        Raises:
            TypeError, ValueError: see ``compile``.
        """
        self.target, self.reason = target, reason
        self.fullgraph, self.dynamic = fullgraph, dynamic
        self.backend, self.mode, self.options = backend, mode, options
        _, backend_options = Limits.of(options)
        if backend == "magpy":  # which cannot be imported without the helper
            compile_settings(mode, backend_options)
        else:
            from magpy_like.records.backend_names import resolve_backend

            resolve_backend(backend, mode, backend_options)
        self.native = 0
        self.on_miss: Callable[[], Callable[..., Any]] | None = None
        """See ``native_call``."""
        dispatchers.add(self)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.native += 1
        return native_call(self)(*args, **kwargs)

    def cache_info(self) -> CacheInfo:
        return CacheInfo(0, 0, 0, 0, native=self.native)

    def explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], known: Any = None
    ) -> Explanation:
        self.target(*args, **kwargs)
        name = getattr(self.target, "__qualname__", type(self.target).__qualname__)
        code = getattr(self.target, "__code__", None)
        cause = SplitCause(SplitReason.NO_MONITOR, self.reason)
        return Explanation(split_points=[SplitPoint.of(str(name), code, cause)])

    def reset(self) -> None:
        self.native = 0


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

_warning_lock = threading.Lock()
_has_warned = False


def make_dispatcher(target: Callable[..., Any], **settings: Any) -> Any:
    """The dispatcher of a compiled function; an ``UncompiledProgram`` without the native helper.

    ``settings`` are the arguments of ``magpy_like.compile``. Warns once where nothing is compiled.
    """
    reason = helper_status.obstacle()
    if reason is None:
        from magpy_like.native import own_work

        with own_work:  # an import that is interrupted leaves locks held and modules half made
            from magpy_like.records.dispatcher import Dispatcher

            return Dispatcher(target, **settings)
    dispatcher = UncompiledProgram(target, reason, **settings)
    if _is_first_warning():
        warnings.warn(
            "magpy_like compiles nothing in this process: all programs run natively, with the same "
            f"results but no faster. The reason: {reason} Then restart the process.",
            MagpyWarning,
            stacklevel=3,
        )
    return dispatcher


def _is_first_warning() -> bool:
    global _has_warned
    with _warning_lock:
        is_first, _has_warned = not _has_warned, True
    return is_first


def reset_all() -> None:
    """Discard the records of every compiled function."""
    for dispatcher in list(dispatchers):
        dispatcher.reset()

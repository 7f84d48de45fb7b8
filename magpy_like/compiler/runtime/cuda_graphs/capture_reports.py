"""Reports on the compiled graphs of a program: captured as CUDA graphs, or why not."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from magpy_like.compiler.runtime.cuda_graphs.capture_site import CaptureSite
from magpy_like.compiler.runtime.profiled_launchers import ProfiledLauncher
from magpy_like.graph_operators.node_origins import ProfilerRegion
from magpy_like.graph_operators.profiled_graphs import regions_of


@dataclass(frozen=True)
class CaptureReport:
    """The report on one compiled graph that runs on a GPU; ``str()`` is a line for people.

    Attributes:
        kind: "forward", "backward" or "inference".
        graphs: the CUDA graphs that it holds.
        sites: the combinations of sizes, numbers and streams of its calls.
        captured_sites: those that have CUDA graphs.
        nbytes: GPU memory that only these CUDA graphs use, about.
        obstacles: why calls are launched kernel by kernel, each reason once.
        pieces: the pieces of the graph that can be CUDA graphs each, if ``split_by`` is between.
        split_by: what a CUDA graph cannot hold; "" if the graph is in one piece.
    """

    kind: str
    graphs: int = 0
    sites: int = 0
    captured_sites: int = 0
    nbytes: int = 0
    obstacles: tuple[str, ...] = ()
    pieces: int = 1
    split_by: str = ""

    @classmethod
    def of_sites(
        cls, kind: str, obstacle: str | None, sites: Sequence[CaptureSite]
    ) -> CaptureReport:
        """The report of a launcher with these sites; ``obstacle`` is that of the whole graph."""
        found = [graph for site in sites for graph in site.graphs]
        reasons = dict.fromkeys([obstacle, *(site.obstacle for site in sites)])
        return cls(
            kind,
            len(found),
            len(sites),
            sum(bool(site.graphs) for site in sites),
            sum(graph.nbytes for graph in found),
            tuple(reason for reason in reasons if reason is not None),
        )

    def __str__(self) -> str:
        parts = []
        if self.graphs:
            plural = "s" if self.graphs > 1 else ""
            parts.append(f"{self.graphs} CUDA graph{plural}, {self.nbytes / 1e6:.1f} MB")
            if self.sites > 1:
                parts[0] += f", for {self.captured_sites} of {self.sites} combinations of sizes"
        elif not self.obstacles:
            parts.append("no CUDA graph yet: the first calls are launched kernel by kernel")
        calls = "other calls are launched" if self.graphs else "launched"
        if self.split_by:
            parts.append(
                f"in {self.pieces} pieces, as a CUDA graph cannot hold all: {self.split_by}"
            )
        parts += [f"{calls} kernel by kernel: {reason}" for reason in self.obstacles]
        return f"{self.kind}: {'; '.join(parts)}"


def report_pieces(split_by: str | None, pieces: Sequence[Any], kind: str) -> CaptureReport:
    """The report of a compiled graph whose ``pieces`` are captured one by one."""
    found: list[CaptureReport] = [piece.report(kind) for piece in pieces]
    return CaptureReport(
        kind,
        sum(report.graphs for report in found),
        max((report.sites for report in found), default=0),
        max((report.captured_sites for report in found), default=0),
        sum(report.nbytes for report in found),
        tuple(dict.fromkeys(reason for report in found for reason in report.obstacles)),
        len(found),
        split_by or "",
    )


FORBIDDEN = "the mode or the option cuda_graphs forbids CUDA graphs"


@dataclass(frozen=True)
class NameInProfiles:
    """What a profile shows of one captured graph."""

    title: str
    regions: Sequence[ProfilerRegion]

    def describe(self, launcher: Any, kind: str) -> None:
        """Tell the launcher of one of its compiled graphs, if that has kernels."""
        profiled: ProfiledLauncher | None = getattr(launcher, "profiled", None)
        if profiled is not None:
            regions = None if kind == "backward" else self.regions
            profiled.describe(f"{self.title} ({kind})", regions)


class ProgramLaunchers:
    """The launchers of a program's compiled graphs, for as long as its records live."""

    def __init__(self, name: Callable[[], str] = lambda: "") -> None:
        """``name`` returns the program's name, for people."""
        self._name, self._numbers = name, itertools.count()
        self._kinds: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def add(self, launcher: Any, kind: str) -> None:
        """Note the launcher of a compiled graph, if it uses a GPU."""
        if getattr(launcher, "gpu", None) is not None:
            with self._lock:
                self._kinds[launcher] = kind

    def name_graph(self, captured: fx.GraphModule) -> NameInProfiles:
        """The name of another captured graph of the program."""
        name = self._name()
        title = f"magpy: graph {next(self._numbers)}" + f" of {name}" * bool(name)
        return NameInProfiles(title, regions_of(captured))

    def reports(self) -> list[CaptureReport]:
        """A report per compiled graph, in the order of compilation."""
        with self._lock:
            known = list(self._kinds.items())
        return [_report(launcher, kind) for launcher, kind in known]


def _report(launcher: Any, kind: str) -> CaptureReport:
    if hasattr(launcher, "report"):
        found: CaptureReport = launcher.report(kind)
        return found
    return CaptureReport(kind, obstacles=(FORBIDDEN,))


_launchers: contextvars.ContextVar[ProgramLaunchers | None] = contextvars.ContextVar(
    "launchers", default=None
)


@contextlib.contextmanager
def collecting(launchers: ProgramLaunchers) -> Iterator[None]:
    """Add the launchers of all graphs that are compiled within, their backward passes included,
    which are compiled later."""
    token = _launchers.set(launchers)
    try:
        yield
    finally:
        _launchers.reset(token)


def collected_launchers() -> ProgramLaunchers:
    """The launchers that :func:`collecting` adds to; without it, ones that nobody reads."""
    found = _launchers.get()
    return ProgramLaunchers() if found is None else found

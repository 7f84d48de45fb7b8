"""Launchers that a profiler watches: their graphs, kernels and the program's own regions.

A call must not pay for a question that is rarely answered with yes. Therefore a launcher has the
plain code until a compiled call meets a profiler, which shows all launchers at once: each then has
code that asks whether its thread is profiled. The first call after the last profiler has stopped
hides them again.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from magpy_like.compiler.codegen.profiled_source import ProfiledStep, profiled_source
from magpy_like.graph_operators.node_metadata import source_line
from magpy_like.graph_operators.node_origins import OriginalNodes, ProfilerRegion
from magpy_like.graph_operators.profiled_graphs import begin_region, end_region
from magpy_like.torch_compat.profiler import is_any_profiler_on, is_profiled, region
from magpy_like.torch_patches import compile_source

Call = Callable[[list[Any]], Any]

_SHOWN_NAME = "run_profiled"
_SHOWN = next(
    code
    for code in compile(f"def call(args): return {_SHOWN_NAME}(args)", __file__, "exec").co_consts
    if isinstance(code, types.CodeType)
)
"""The code of a launcher that is shown."""

_lock = threading.Lock()
_launchers: weakref.WeakSet[ProfiledLauncher] = weakref.WeakSet()
_are_shown = False


class StepOrigins(NamedTuple):
    """A step of a launcher, and the nodes that it computes; see :class:`ProfiledStep`."""

    first: int
    last: int
    call: str
    title: str
    nodes: Sequence[int]
    """Their indices in the graph that was compiled, before any pass."""


class ProfiledLauncher:
    """The two codes of one launcher ``call(args)``."""

    def __init__(
        self, call: Call, source: str, steps: Sequence[StepOrigins], nodes: OriginalNodes
    ) -> None:
        """``nodes`` are those of the graph that was compiled."""
        assert isinstance(call, types.FunctionType)
        self._call, self._source, self._steps = call, source, steps
        self._plain = types.FunctionType(call.__code__, call.__globals__)
        self._nodes = nodes
        self._title = "magpy: graph"
        self._regions: Collection[ProfilerRegion] | None = ()
        call.__globals__[_SHOWN_NAME] = self.run
        with _lock:
            _launchers.add(self)
            if _are_shown:
                self.show()

    def describe(self, title: str, regions: Collection[ProfilerRegion] | None) -> None:
        """Note the graph's name in a profile, and the regions that the program has left in it; None
        for a backward graph, which shows none."""
        self._title, self._regions = title, regions

    def captured_nodes(self) -> list[list[int]]:
        """Per step, the indices of the nodes of the captured graph that it computes."""
        per_step = ((self._nodes.captured[k] for k in step.nodes) for step in self._steps)
        return [[*dict.fromkeys(k for k in found if k is not None)] for found in per_step]

    def show(self) -> None:
        self._call.__code__ = _SHOWN

    def hide(self) -> None:
        self._call.__code__ = self._plain.__code__

    def run(self, args: list[Any]) -> Any:
        """A call while launchers are shown."""
        if not is_profiled():
            if not is_any_profiler_on():
                _hide_all()
            return self._plain(args)
        call = self._with_regions  # compiled before the region begins
        with region(self._title):
            return call(args)

    @functools.cached_property
    def _with_regions(self) -> Call:
        """The launcher with regions for a profiler."""
        steps = [self._profiled(step) for step in self._steps]
        source = profiled_source(self._source, steps, self._regions or ())
        names = self._plain.__globals__ | {
            "kernel_region": region, "begin_region": begin_region, "end_region": end_region,
        }  # fmt: skip
        exec(compile_source("magpy_like profiled launcher", source), names)
        call: Call = names["call"]
        return call

    def _profiled(self, step: StepOrigins) -> ProfiledStep:
        enclosing = itertools.chain.from_iterable(self._nodes.regions[k] for k in step.nodes)
        regions = frozenset() if self._regions is None else frozenset(enclosing)
        lines = [source_line(self._nodes.stack_traces[k]) for k in step.nodes]
        where = _short([line for line in lines if line is not None])
        title = f"{step.title} ({where})" if where else step.title
        return ProfiledStep(step.first, step.last, step.call, title, regions)


MAX_LINES = 6
"""Lines of the program in the name of a kernel."""


def _short(lines: Sequence[str]) -> str:
    """Lines of the program as text: ``folder/file.py:12, 13``."""
    found: dict[str, dict[str, None]] = {}
    for line in dict.fromkeys(lines[:MAX_LINES]):
        path, _, number = line.rpartition(":")
        found.setdefault("/".join(path.split("/")[-2:]), {})[number] = None
    return "; ".join(f"{path}:{', '.join(numbers)}" for path, numbers in found.items())


def show_all() -> None:
    """Show all launchers to profilers: a profiler records this thread."""
    global _are_shown
    if _are_shown:
        return
    with _lock:
        _are_shown = True
        for launcher in _launchers:
            launcher.show()


def _hide_all() -> None:
    """Give all launchers their plain code: no profiler is on."""
    global _are_shown
    with _lock:
        _are_shown = False
        for launcher in _launchers:
            launcher.hide()

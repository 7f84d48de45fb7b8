"""The calls of a launcher with equal sizes on one stream, and their findings.

A site counts calls, measures whether launches or the GPU take longer, observes which arguments
keep their addresses, and holds the CUDA graphs captured from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magpy_like.compiler.runtime.cuda_graphs import held_graphs
from magpy_like.compiler.runtime.cuda_graphs.capture_pool import CapturePool
from magpy_like.compiler.runtime.cuda_graphs.captured_graph import CapturedGraph, is_on_gpu

Call = Callable[[list[Any]], Any]

MIN_CALLS = 3
"""Calls that launch kernel by kernel before a capture. The first ones load kernels, and choose
algorithms and workspaces of libraries."""
MAX_TIMINGS = 4
"""Attempts to measure a call: the GPU may still be at work when the next one begins."""
MIN_LAUNCH_SHARE = 0.7
"""Ratio of a call's time on the CPU to the time until the GPU has finished it, from which launches
bound it. The GPU is never ahead: where it waits for launches, the ratio is about one."""
MAX_GRAPHS = 3
"""CUDA graphs of one site: several where results of one are held while the next call runs."""
MIN_OBSERVATIONS = 2
"""Calls in a row that no CUDA graph accepts before another capture: their difference shows which
arguments change their addresses at each call, and which do not."""
FREE_CAPTURES = 4
"""Captures of one site that need not have paid yet."""
MIN_REPLAYS = 16
"""Replays for each further capture: capturing takes about as long as launching some ten times."""


class CaptureSite:
    """See the module."""

    def __init__(self) -> None:
        self.graphs: list[CapturedGraph] = []
        self.calls = 0
        self._captures = self._replays = 0
        self._observed = 0
        self.obstacle: str | None = None
        """Why nothing more is captured here."""
        self._addresses: list[int | None] = []
        self._changed: set[int] = set()
        """The indices of arguments whose addresses differed between the last two calls."""
        self._timing: tuple[torch.cuda.Event, torch.cuda.Event, float] | None = None
        self._timings = 0
        self._launch_share: float | None = None

    def find(self, args: list[Any], pool: CapturePool) -> CapturedGraph | None:
        """The CUDA graph for these arguments, whose memory this pool's lock protects."""
        for graph in self.graphs:
            if graph.pool is pool and graph.accepts(args):
                self._replays += 1
                self._observed = 0
                return graph
        return None

    def may_capture(self) -> bool:
        """True if enough is known for a capture, and earlier ones have paid."""
        paid = self._captures < FREE_CAPTURES or self._replays >= MIN_REPLAYS * self._captures
        return self.calls > MIN_CALLS and self._observed >= MIN_OBSERVATIONS and paid

    def observe(self, args: Sequence[Any]) -> None:
        """Note a call that no CUDA graph accepts."""
        addresses = [a.data_ptr() if is_on_gpu(a) else None for a in args]
        pairs = zip(addresses, self._addresses, strict=False)
        self._changed = {k for k, (now, before) in enumerate(pairs) if now != before}
        self._addresses = addresses
        self.calls += 1
        self._observed += 1

    def run_timed(self, call: Call, args: list[Any]) -> Any:
        """``call(args)``, timed if that is still needed."""
        if self.calls < 2 or self._launch_share is not None or self._timings >= MAX_TIMINGS:
            return call(args)
        self._timings += 1
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin = time.perf_counter()
        events[0].record()
        results = call(args)
        events[1].record()
        self._timing = (*events, time.perf_counter() - begin)
        return results

    def launches_bound(self) -> bool | None:
        """True if launches take longer than the GPU's work, False if not, None before that is
        measured."""
        if self._timing is not None and self._timing[1].query():
            start, end, launch = self._timing
            self._launch_share = launch * 1e3 / max(start.elapsed_time(end), 1e-6)
            self._timing = None
        if self._launch_share is None:
            # A GPU that is still at work at each of several calls bounds the program.
            return False if self._timings >= MAX_TIMINGS else None
        return self._launch_share >= MIN_LAUNCH_SHARE

    def staged(self, args: Sequence[Any]) -> set[int]:
        """The indices of arguments that a capture has to stage."""
        return {k for k in self._changed if is_on_gpu(args[k])}

    def drop(self, graph: CapturedGraph) -> None:
        """Forget a CUDA graph; a replay that another thread has begun ends."""
        self.graphs = [other for other in self.graphs if other is not graph]

    def add(self, graph: CapturedGraph, gpu: int) -> None:
        """Keep a CUDA graph; the one that was captured first makes room for it."""
        if len(self.graphs) == MAX_GRAPHS:
            self.drop(self.graphs[0])
        self.graphs.append(graph)
        held_graphs.add(graph, self, gpu)
        self._captures += 1
        self._observed = 0

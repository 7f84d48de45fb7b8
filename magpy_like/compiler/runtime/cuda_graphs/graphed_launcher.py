"""The launcher of a compiled graph, replayed as a CUDA graph where that pays and is possible."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from magpy_like.compile_modes import CudaGraphs
from magpy_like.compiler.runtime.cuda_graphs.capture_pool import CapturePool, pool_of
from magpy_like.compiler.runtime.cuda_graphs.capture_reports import CaptureReport
from magpy_like.compiler.runtime.cuda_graphs.capture_site import (
    MAX_GRAPHS,
    MIN_CALLS,
    CaptureSite,
)
from magpy_like.compiler.runtime.cuda_graphs.captured_graph import CapturedGraph
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import GraphFacts
from magpy_like.interruption import is_interruption
from magpy_like.torch_compat.cuda import current_device, current_raw_stream, library_settings

_log = logging.getLogger(__name__)

Call = Callable[[list[Any]], Any]

MAX_SITES = 16
"""Combinations of sizes, numbers, streams and settings of one launcher that have CUDA graphs. The
one that was called least recently makes room for a new one."""
MAX_STAGED_BYTES = 16 << 20
"""Bytes of staged arguments that are accepted at once: copying them takes some 15 µs."""
MAX_STAGED_SHARE = 0.25
"""Largest share of more staged bytes in those of all arguments. Where more changes its address,
such as activations that another graph computes, it pays to wait until they settle."""


class GraphedLauncher:
    """Called with a list of arguments, which it empties, like the launcher that it replays."""

    def __init__(
        self,
        call: Call,
        facts: GraphFacts,
        policy: CudaGraphs,
        constants: Collection[int],
        written: Collection[int] = (),
    ) -> None:
        """
        Args:
            constants: ``_cdata`` of the storages of the launcher's constant tensors.
            written: positions of arguments that ``call`` writes to without counting a version;
                see :class:`Pieces`.
        """
        assert facts.gpu is not None
        self._written = written
        self._call, self._facts, self._policy, self._constants = call, facts, policy, constants
        self.gpu = facts.gpu
        self._sites: OrderedDict[Any, CaptureSite] = OrderedDict()
        self.obstacle = facts.obstacle
        """Why nothing is captured; None if that is possible."""

    def __call__(self, args: list[Any]) -> Any:
        if self.obstacle is not None or torch.cuda.is_current_stream_capturing():
            return self._call(args)
        if current_device() != self.gpu:
            with torch.cuda.device(self.gpu):
                return self(args)
        stream = current_raw_stream(self.gpu)
        key = self._key(args, stream)
        site = self._sites.get(key)
        if site is None:
            site = self._new_site(key)
        else:
            with contextlib.suppress(KeyError):  # another thread has made room for a new one
                self._sites.move_to_end(key)
        if site.obstacle is not None:
            return self._call(args)
        pool = pool_of(self.gpu, stream)
        if pool is None or not pool.lock.acquire(blocking=False):
            return self._call(args)
        try:
            graph = site.find(args, pool) or self._capture(site, args, pool)
            if graph is not None:
                return graph.replay(args)
        finally:
            pool.lock.release()
        return site.run_timed(self._call, args)

    def report(self, kind: str) -> CaptureReport:
        """What is captured, and why not more; ``kind`` is the graph's."""
        return CaptureReport.of_sites(kind, self.obstacle, list(self._sites.values()))

    def _key(self, args: list[Any], stream: int) -> Any:
        """What a CUDA graph depends on beside the addresses of its arguments."""
        # Floats as text: 0.0 equals -0.0.
        rest = (a for a in args if not isinstance(a, Tensor))
        numbers = [repr(a) if type(a) is float else a for a in rest]
        sizes = None
        if self._facts.symbolic:
            sizes = tuple((*a.size(), *a.stride()) for a in args if isinstance(a, Tensor))
        return (stream, library_settings(), sizes, *numbers)

    def _new_site(self, key: Any) -> CaptureSite:
        site = self._sites[key] = CaptureSite()
        if len(self._sites) > MAX_SITES:
            self._sites.popitem(last=False)
        return site

    def _capture(
        self, site: CaptureSite, args: list[Any], pool: CapturePool
    ) -> CapturedGraph | None:
        """A CUDA graph for these arguments, if it is time for one."""
        site.observe(args)
        if not site.may_capture():
            return None
        if self._policy is CudaGraphs.IF_FASTER and not (bound := site.launches_bound()):
            if bound is False:
                site.obstacle = "the GPU takes longer than the launches"
            return None
        staged = site.staged(args)
        if not _is_cheap(args, staged) and site.calls < 2 * MIN_CALLS + 2:
            return None
        if len(site.graphs) == MAX_GRAPHS and all(graph.is_held() for graph in site.graphs):
            return None
        return self._try_capture(site, args, staged, pool)

    def _try_capture(
        self, site: CaptureSite, args: list[Any], staged: set[int], pool: CapturePool
    ) -> CapturedGraph | None:
        try:
            graph = CapturedGraph(
                self._call, args, staged, pool, self._constants, self._facts.lendable,
                self._written,
            )  # fmt: skip
        except torch.OutOfMemoryError:
            site.obstacle = "GPU memory was exhausted"
            return None
        except Exception as error:
            if is_interruption(error):
                raise
            self.obstacle = f"its capture failed: {str(error).strip().splitlines()[0]}"
            _log.info("a graph is launched kernel by kernel: %s", self.obstacle)
            return None
        site.add(graph, self.gpu)
        return graph


def _is_cheap(args: list[Any], staged: set[int]) -> bool:
    sizes = [a.nbytes if isinstance(a, Tensor) else 0 for a in args]
    copied = sum(sizes[k] for k in staged)
    return copied <= MAX_STAGED_BYTES or copied <= MAX_STAGED_SHARE * sum(sizes)

"""Memory, capture stream and lock of the CUDA graphs that are replayed on one stream of one GPU.

Replays on one stream follow each other. Graphs whose results are copied at once therefore share
their memory. A graph that lends results has memory of its own: the allocator gives what one capture
has freed, and each replay overwrites, to the results of a later capture.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from magpy_like.torch_compat.cuda import end_allocate_to_pool, release_pool
from magpy_like.torch_patches import no_garbage_collection


class CapturePool:
    """The resources shared by the CUDA graphs of one stream.

    ``lock`` is held from the first write to a graph's memory until its results are handed out. A
    thread that finds it taken launches kernel by kernel; so does a call from a finaliser within.
    """

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._shared: Any = None
        """The allocator's pool of graphs that lend nothing."""
        self._sharing: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        # Of its own: library workspaces belong to the stream of the capture.
        self._stream = torch.cuda.Stream(gpu)
        self._scratch = torch.zeros(1, device=torch.device("cuda", gpu))
        self.lock = threading.Lock()

    @property
    def is_unused(self) -> bool:
        """True if no graph of this pool is left, and none is made."""
        return not self._graphs and not self.lock.locked()

    @contextlib.contextmanager
    def capturing(self, graph: torch.cuda.CUDAGraph, *, lends: bool) -> Iterator[None]:
        """Record the kernels that are launched within as ``graph``; none of them runs.

        ``lends``: results of the graph may be lent.

        Raises:
            Exception: any that the capture raises. ``graph`` is unusable then.
        """
        if lends:
            handle = torch.cuda.graph_pool_handle()
        else:
            if not self._sharing:  # the allocator gives up a pool without graphs
                self._shared = torch.cuda.graph_pool_handle()
            handle = self._shared
        # Finalisers may call CUDA functions that end a capture.
        with no_garbage_collection(), torch.cuda.stream(self._stream):
            try:
                graph.capture_begin(pool=handle, capture_error_mode="thread_local")
                yield
                graph.capture_end()
                self._graphs.add(graph)
                if not lends:
                    self._sharing.add(graph)
            except BaseException:
                self._abandon(graph, handle)
                raise

    def _abandon(self, graph: torch.cuda.CUDAGraph, handle: Any) -> None:
        """End a capture in which an error occurred.

        Where the driver has ended it already, torch raises before it restores the allocators of
        memory and the generator of random numbers. A further capture restores the generator. The
        allocators may refer to the graph, and do not admit its pool again.
        """
        _abandoned.append(graph)
        try:
            graph.capture_end()
        except RuntimeError:
            with contextlib.suppress(RuntimeError):  # there is no such capture
                end_allocate_to_pool(self._gpu, handle)
                release_pool(self._gpu, handle)
            self._sharing = weakref.WeakSet()  # the next graph begins another pool
            _abandoned.append(spare := torch.cuda.CUDAGraph())
            with contextlib.suppress(torch.OutOfMemoryError):  # the generator was not reached
                spare.capture_begin(capture_error_mode="thread_local")
                self._scratch.zero_()
                spare.capture_end()


_abandoned: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture did not succeed. *Seen* on torch 2.11: the destructor of one whose
``capture_begin`` ran out of memory ends the process."""

_pools: dict[tuple[int, int], CapturePool] = {}
_making = threading.Lock()

MAX_POOLS = 4
"""Streams with a pool of their own. Calls on further streams launch kernel by kernel."""


def pool_of(gpu: int, stream: int) -> CapturePool | None:
    """The pool of a GPU's stream, by the stream's address; None if there are too many."""
    found = _pools.get((gpu, stream))
    if found is None:
        with _making:
            found = _pools.get((gpu, stream))
            if found is None:
                for key, pool in [*_pools.items()]:
                    if pool.is_unused:
                        del _pools[key]
                if len(_pools) < MAX_POOLS:
                    found = _pools[gpu, stream] = CapturePool(gpu)
    return found

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

import torch

from magpy_like.torch_compat.cuda import (
    clear_library_workspaces,
    end_allocate_to_pool,
    release_pool,
)
from magpy_like.torch_patches import no_garbage_collection


class CapturePool:
    """The resources shared by the CUDA graphs of one stream.

    ``lock`` is held from the first write to a graph's memory until its results are handed out. A
    thread that finds it taken launches kernel by kernel; so does a call from a finaliser within.
    """

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._shared: weakref.ref[torch.cuda.MemPool] | None = None
        """The memory of graphs that lend nothing, as long as there is one."""
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        # Of its own: library workspaces belong to the stream of the capture.
        self._stream = torch.cuda.Stream(gpu)
        self._scratch = torch.zeros(1, device=torch.device("cuda", gpu))
        self.lock = threading.Lock()

    @property
    def is_unused(self) -> bool:
        """True if no graph of this pool is left, and none is made."""
        return not self._graphs and not self.lock.locked()

    def memory(self, *, lends: bool) -> torch.cuda.MemPool:
        """The memory for a graph, which returns it to the GPU when it is deleted after the graph.

        ``lends``: results of the graph may be lent.
        """
        shared = None if lends or self._shared is None else self._shared()
        if shared is not None:
            return shared
        with torch.cuda.device(self._gpu):
            memory = torch.cuda.MemPool()
        if not lends:
            self._shared = weakref.ref(memory)
        return memory

    @contextlib.contextmanager
    def capturing(self, graph: torch.cuda.CUDAGraph, memory: torch.cuda.MemPool) -> Iterator[None]:
        """Record the kernels that are launched within as ``graph``; none of them runs.

        Raises:
            Exception: any that the capture raises. ``graph`` is unusable then.
        """
        # Finalisers may call CUDA functions that end a capture.
        with no_garbage_collection(), torch.cuda.stream(self._stream):
            # The graph's products use a workspace in its own memory: torch, and torch.compile, may
            # free the workspace of a stream at any time, and others then write to its memory.
            clear_library_workspaces()
            try:
                graph.capture_begin(pool=memory.id, capture_error_mode="thread_local")
                yield
                graph.capture_end()
                self._graphs.add(graph)
            except BaseException:
                self._abandon(graph, memory)
                raise
            finally:
                clear_library_workspaces()

    def _abandon(self, graph: torch.cuda.CUDAGraph, memory: torch.cuda.MemPool) -> None:
        """End a capture in which an error occurred.

        Where the driver has ended it already, torch raises before it restores the allocators of
        memory and the generator of random numbers. A further capture restores the generator. The
        allocators may refer to the graph, and do not admit its pool again.
        """
        _abandoned.append((graph, memory))
        try:
            graph.capture_end()
        except RuntimeError:
            with contextlib.suppress(RuntimeError):  # there is no such capture
                end_allocate_to_pool(self._gpu, memory.id)
                release_pool(self._gpu, memory.id)
            self._shared = None  # the next graph begins another pool
            _abandoned.append((spare := torch.cuda.CUDAGraph(), memory))
            with contextlib.suppress(torch.OutOfMemoryError):  # the generator was not reached
                spare.capture_begin(capture_error_mode="thread_local")
                self._scratch.zero_()
                spare.capture_end()


_abandoned: list[tuple[torch.cuda.CUDAGraph, torch.cuda.MemPool]] = []
"""Graphs whose capture did not succeed, and their memory. *Seen* on torch 2.11: the destructor of a
graph whose ``capture_begin`` ran out of memory ends the process."""

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

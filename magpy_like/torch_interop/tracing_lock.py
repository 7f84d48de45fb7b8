"""The lock that lets one thread at a time trace with torch.

Tracing replaces methods of `torch.nn.Module` for all threads. If two traces overlap, the first one
to end restores the wrong methods.

The fake tensor modes of a trace refer weakly to the program's tensors. They forget them when the
lock is released (:mod:`.own_fake_modes` has the reason).

A thread is at own work from its wait for the lock until it releases it. Tracing does not survive an
interruption. And on Python 3.11 an exception sent to a thread that waits would stop the holder, if
a trace function (a debugger's, the monitor's) is set there.
"""

from __future__ import annotations

import threading

from magpy_like.interruption import begin_own_work, end_own_work
from magpy_like.torch_compat.tracing.fake_tensors import forget_described
from magpy_like.torch_patches import NotedDescribers, bound_tables, transient_graph_sources


class TracingLock:
    """Reentrant lock, held with ``with`` by the thread that traces."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._count = 0
        self._own = _OwnCount()
        self._depth = 0

    def __enter__(self) -> None:
        begin_own_work()
        self._lock.acquire()
        self._depth += 1
        try:
            if self._depth == 1:
                self._begin()
        except BaseException as error:
            self._leave(error)
            raise

    def _begin(self) -> None:
        bound_tables()
        self._sources = transient_graph_sources()
        self._sources.__enter__()
        self._describers = NotedDescribers()
        self._describers.__enter__()
        self._holder = threading.get_ident()
        self._count += 1
        self._own.count += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._depth == 1:
            self._holder = None
            self._describers.__exit__()
            for describer in self._describers.found:
                forget_described(describer)
            self._describers.found.clear()
            self._sources.__exit__(None, None, None)
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        self._depth -= 1
        self._lock.release()
        end_own_work(error)

    def is_held_elsewhere(self) -> bool:
        """True if another thread traces now."""
        return self._holder not in (None, threading.get_ident())

    def count_by_other_threads(self) -> int:
        """The number of traces that other threads have begun until now."""
        return self._count - self._own.count


class _OwnCount(threading.local):
    count = 0


TRACING_LOCK = TracingLock()

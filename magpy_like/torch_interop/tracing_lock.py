"""The lock that lets one thread at a time trace with torch.

Tracing replaces methods of `torch.nn.Module` for all threads. If two traces overlap, the first one
to end restores the wrong methods.
"""

from __future__ import annotations

import threading

from magpy_like.torch_patches import bound_tables, transient_graph_sources


class TracingLock:
    """Reentrant lock, held with ``with`` by the thread that traces."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._count = 0
        self._own = _OwnCount()
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            bound_tables()
            self._sources = transient_graph_sources()
            self._sources.__enter__()
            self._holder = threading.get_ident()
            self._count += 1
            self._own.count += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._sources.__exit__(None, None, None)
        self._lock.release()

    def is_held_elsewhere(self) -> bool:
        """True if another thread traces now."""
        return self._holder not in (None, threading.get_ident())

    def count_by_other_threads(self) -> int:
        """The number of traces that other threads have begun until now."""
        return self._count - self._own.count


class _OwnCount(threading.local):
    count = 0


TRACING_LOCK = TracingLock()

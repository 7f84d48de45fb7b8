"""Torch traces in one thread at a time.

While it does, methods of `torch.nn.Module` are others, for all threads, and the one that is done
first puts the wrong ones back if two have begun.
"""

from __future__ import annotations

import threading


class TracingLock:
    """Held by the thread that traces; ``with`` waits for others, not for the thread itself."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._taken = 0
        self._own = _Own()
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._holder = threading.get_ident()
            self._taken += 1
            self._own.taken += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
        self._lock.release()

    def is_held_elsewhere(self) -> bool:
        """Whether another thread traces now."""
        return self._holder not in (None, threading.get_ident())

    def count_by_other_threads(self) -> int:
        """How often other threads have traced until now."""
        return self._taken - self._own.taken


class _Own(threading.local):
    taken = 0


TRACING_LOCK = TracingLock()

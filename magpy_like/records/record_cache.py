"""Record cache: the records of one compiled function, and the search for one that matches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from magpy_like.interruption import is_interruption
from magpy_like.native.instance_checks import is_instance
from magpy_like.synthesis.record import Record


class RecordCache:
    """The records of one compiled function or continuation, the last that matched first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records: tuple[Record, ...] = ()
        self.hits = self.misses = 0

    def match(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], excluded: tuple[Record, ...] = ()
    ) -> tuple[Record, tuple[Any, ...]] | None:
        """The first record whose guard holds, with the arguments of its mock."""
        for i, record in enumerate(self.records):
            if excluded and any(record is other for other in excluded):
                continue
            found = self.try_guard(record, args, kwargs)
            if type(found) is tuple:
                self.hits += 1
                if i:
                    self._promote(record)
                return record, found
        return None

    def try_guard(self, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a record's guard: arguments of its mock, or which condition failed."""
        try:
            return record.guard(args, kwargs)
        except Exception as error:
            if is_interruption(error):
                raise
            # The classes of objects that the recorded run never saw may raise anything in a
            # guard. The record does not match; `why_missed` reports the exception.
            return None

    def covers(self, args: tuple[Any, ...]) -> bool:
        """True if a record matches these arguments."""
        return any(type(self.try_guard(record, args, {})) is tuple for record in self.records)

    def why_missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """For each record, the condition that failed for these arguments."""
        reasons = []
        for record in self.records:
            try:
                found = record.guard(args, kwargs)
            except Exception as error:
                reasons.append(f"the guard raised {type(error).__name__}: {error}")
                continue
            reasons.append(record.why_not(found) if is_instance(found, int) else "it matches")
        return reasons

    def insert(self, record: Record) -> None:
        """Add a record as the first, and drop those that it covers."""
        with self.lock:
            self.records = (record, *(r for r in self.records if not record.covers(r)))

    def discard(self, is_outdated: Callable[[Record], bool]) -> None:
        """Drop the records for which the predicate is true."""
        with self.lock:
            self.records = tuple(r for r in self.records if not is_outdated(r))

    def clear(self) -> None:
        """Drop all records."""
        with self.lock:
            self.records = ()

    def _promote(self, record: Record) -> None:
        with self.lock:
            if record in self.records:
                self.records = (record, *(r for r in self.records if r is not record))

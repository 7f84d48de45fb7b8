"""Record cache: the records of one compiled function, and the search for one that matches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from magpy_like.interruption import is_interruption
from magpy_like.monitor.symbolic.numbers.cached_look_ups import forget_look_ups
from magpy_like.native.instance_checks import is_instance
from magpy_like.records.record_index import RecordIndex
from magpy_like.synthesis.guard.conditions import Kind
from magpy_like.synthesis.mock.roll_back import GraphFailure, Misspeculation
from magpy_like.synthesis.record import Record

INDEXED_FROM = 6
"""Number of records beyond which they are indexed."""


class RecordCache:
    """The records of one compiled function or continuation.

    The last that matched comes first. The others of a few are tried in turn; many are indexed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records: tuple[Record, ...] = ()
        self._index: RecordIndex | None = None
        """All records, if they are many."""
        self._last: Record | None = None
        """The record that matched last, or is the newest."""
        self._looks_up = False
        """Whether guards of records look up functions with a cache."""
        self.forget_calls()

    def forget_calls(self) -> None:
        """Set all counters of calls to zero."""
        self.hits = self.misses = self.native = self.uncompiled = 0

    def match(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], excluded: tuple[Record, ...] = ()
    ) -> tuple[Record, tuple[Any, ...]] | None:
        """The first record whose guard holds, with the arguments of its mock."""
        last = self._last
        if self._looks_up:
            forget_look_ups()
        if last is not None and not excluded:
            try:  # `try_guard`, without the cost of its call
                found = last.guard(args, kwargs)
            except Exception as error:
                found = None
                _raise_interruption(error)
            if type(found) is tuple:
                self.hits += 1
                return last, found
        index = self._index
        for record in self.records if index is None else index.candidates(args, kwargs):
            if (record is last and not excluded) or any(record is other for other in excluded):
                continue
            found = self.try_guard(record, args, kwargs)
            if type(found) is tuple:
                self.hits += 1
                self._promote(record)
                return record, found
        return None

    def try_guard(self, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a record's guard: arguments of its mock, or which condition failed."""
        try:
            return record.guard(args, kwargs)
        except Exception as error:
            _raise_interruption(error)
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
                if is_interruption(error):
                    raise
                reasons.append(f"the guard raised {type(error).__name__}: {error}")
                continue
            reasons.append(record.why_not(found) if is_instance(found, int) else "it matches")
        return reasons

    def insert(self, record: Record) -> None:
        """Add a record as the first, and drop those that it covers."""
        if record.layout is None and record.is_interpreted:
            record.mock = self._counting(record.mock)
        self._looks_up |= any(Kind.CACHED_CALL in c.kinds for c in record.conditions)
        with self.lock:
            kept = tuple(r for r in self.records if not record.covers(r))
            is_smaller, self.records = len(kept) < len(self.records), (record, *kept)
            self._last = record
            if self._index is None or is_smaller:
                self._begin_index()
            else:
                self._index.insert(record)

    def _counting(self, mock: Callable[..., Any]) -> Callable[..., Any]:
        """``mock``, whose calls count as uncompiled; other mocks need not ask whether they do."""

        def counted(*values: Any) -> Any:
            result = mock(*values)
            if type(result) is not GraphFailure and type(result) is not Misspeculation:
                self.uncompiled += 1
            return result

        return counted

    def discard(self, is_outdated: Callable[[Record], bool]) -> None:
        """Drop the records for which the predicate is true."""
        with self.lock:
            kept = tuple(r for r in self.records if not is_outdated(r))
            if len(kept) < len(self.records):
                self._set(kept)

    def clear(self) -> None:
        """Drop all records."""
        with self.lock:
            self._set(())

    def _set(self, records: tuple[Record, ...]) -> None:
        self.records = records
        self._last = records[0] if records else None
        self._begin_index()

    def _begin_index(self) -> None:
        self._index = RecordIndex(self.records) if len(self.records) > INDEXED_FROM else None

    def _promote(self, record: Record) -> None:
        with self.lock:
            if self._index is not None:
                if record in self._index:
                    self._last = record
            elif any(record is r for r in self.records):
                self.records = (record, *(r for r in self.records if r is not record))
                self._last = record


def _raise_interruption(error: Exception) -> None:
    """Raise what a guard raised if it is an interruption. Otherwise its record does not match, as
    ``why_missed`` reports: classes of objects that the recorded run never saw may raise anything.
    """
    if is_interruption(error):
        raise error

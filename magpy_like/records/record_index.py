"""Record index: which of many records of one function may match a call.

Most records of a function differ in what they expect of an argument: its value, its sizes, or which
object it is. The index excludes only records with a condition that does not hold for the call; the
guards of all others are tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from magpy_like.synthesis.guard.conditions import ArgumentKey, Aspect, argument_key
from magpy_like.synthesis.record import Record

Column = tuple[int | str, Aspect]
"""An argument, and the aspect in which records compare it."""
MAX_COLUMNS = 3
"""Columns that a lookup compares. *Measured*: each costs 0.2 µs; one or two set records apart."""


class RecordIndex:
    """Records by the keys of their arguments."""

    def __init__(self, records: Iterable[Record]) -> None:
        """``records``: the one to be tried first comes first."""
        self._tables: dict[frozenset[Column], _Table] = {}
        self._ids: set[int] = set()
        for record in reversed(tuple(records)):
            self.insert(record)

    def insert(self, record: Record) -> None:
        """Add a record, to be tried before the others."""
        keys = {
            (key.argument, key.aspect): key.expected for key in map(_key, record.conditions) if key
        }
        columns = frozenset(keys)
        if columns not in self._tables:
            self._tables[columns] = _Table()
        self._tables[columns].insert(record, keys)
        self._ids.add(id(record))

    def __contains__(self, record: Record) -> bool:
        return id(record) in self._ids

    def candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Record]:
        """The records whose conditions on arguments may hold for a call."""
        found: list[Record] = []
        for table in tuple(self._tables.values()):
            try:
                found += table.candidates(args, kwargs)
            except Exception:  # an argument has no sizes, or they are symbols
                found += table.all()
        return found


def _key(condition: Any) -> ArgumentKey | None:
    found: ArgumentKey | None = condition.key
    return found


class _Table:
    """Records that compare the same columns, by those columns that set most of them apart."""

    def __init__(self) -> None:
        self._rows: list[tuple[Record, dict[Column, Hashable]]] = []
        self._counts: dict[Column, Counter[Hashable]] = {}
        self._chosen: tuple[tuple[Column, ...], dict[Hashable, tuple[Record, ...]]] = (), {}
        """The compared columns, and the records by their keys; replaced together."""

    def insert(self, record: Record, keys: dict[Column, Hashable]) -> None:
        self._rows.append((record, keys))
        for column, key in keys.items():
            self._counts.setdefault(column, Counter())[key] += 1
        columns, records = self._chosen
        best = sorted(keys, key=lambda column: -len(self._counts[column]))[:MAX_COLUMNS]
        best = [column for column in best if len(self._counts[column]) > 1]
        if set(best) != set(columns):
            columns, records = tuple(best), {}
            for other, its_keys in self._rows[:-1]:
                _add(records, columns, other, its_keys)
        _add(records, columns, record, keys)
        self._chosen = columns, records

    def all(self) -> list[Record]:
        return [record for record, _ in self._rows]

    def candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Record, ...]:
        columns, records = self._chosen
        keys = []
        for argument, aspect in columns:
            if type(argument) is int:
                if argument >= len(args):
                    return ()
                keys.append(argument_key(aspect, args[argument]))
            elif argument in kwargs:
                keys.append(argument_key(aspect, kwargs[str(argument)]))
            else:
                return ()
        return records.get(tuple(keys), ())


def _add(
    records: dict[Hashable, tuple[Record, ...]],
    columns: tuple[Column, ...],
    record: Record,
    keys: dict[Column, Hashable],
) -> None:
    """Put a record before the others with the same keys."""
    key = tuple(keys[column] for column in columns)
    records[key] = (record, *records.get(key, ()))

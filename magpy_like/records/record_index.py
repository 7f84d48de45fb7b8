"""Record index: which of many records of one function may match a call.

Most records of a function differ in what they expect of an argument: its value, its sizes, or which
object it is. Those that expect the same of the arguments differ in what they expect of global names
or attributes. The index excludes only records with a condition that does not hold for the call; the
guards of all others are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from magpy_like.records.location_keys import Location, current_key, location_keys
from magpy_like.synthesis.guard.conditions import ArgumentKey, Aspect, argument_key
from magpy_like.synthesis.record import Record

MAX_COLUMNS = 3
"""Columns that a lookup compares. *Measured*: each costs 0.2 µs; one or two set records apart."""
COMPARED_BY_LOCATIONS = 4
"""Records with the same keys of arguments beyond which locations are compared. *Measured*: a guard
that fails at its watch costs as much as the look-up of two locations."""


class RecordIndex:
    """Records by the keys of their arguments, then by those of locations in fixed objects."""

    def __init__(self, records: Iterable[Record]) -> None:
        """``records``: the one to be tried first comes first."""
        self._tables: dict[frozenset[Hashable], _Table] = {}
        self._ids: set[int] = set()
        for record in reversed(tuple(records)):
            self.insert(record)

    def insert(self, record: Record) -> None:
        """Add a record, to be tried before the others."""
        keys: dict[Hashable, Hashable] = {
            _Argument(key.argument, key.aspect): key.expected
            for key in map(_key, record.conditions)
            if key
        }
        columns = frozenset(keys)
        if columns not in self._tables:
            self._tables[columns] = _Table(_SameArguments)
        self._tables[columns].insert(record, keys)
        self._ids.add(id(record))

    def __contains__(self, record: Record) -> bool:
        return id(record) in self._ids

    def candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Record]:
        """The records whose conditions on arguments and locations may hold for a call."""

        def read(column: Any) -> Hashable:
            argument, aspect = column
            value = args[argument] if type(argument) is int else kwargs[argument]
            return argument_key(aspect, value)

        return _candidates(self._tables.values(), read)


class _Argument(NamedTuple):
    """An argument, and the aspect in which records compare it."""

    argument: int | str
    aspect: Aspect


def _key(condition: Any) -> ArgumentKey | None:
    found: ArgumentKey | None = condition.key
    return found


class _Same:
    """Records that expect the same of all compared columns, the one to be tried first first."""

    def __init__(self) -> None:
        self.records: tuple[Record, ...] = ()

    def insert(self, record: Record) -> None:
        self.records = (record, *self.records)

    def candidates(self) -> Iterable[Record]:
        return self.records


class _SameArguments(_Same):
    """Records that expect the same of arguments: many are indexed by locations."""

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[int, Any] = {}
        self._tables: list[_Table] = []
        """All records, if they are many."""

    def insert(self, record: Record) -> None:
        super().insert(record)
        if self._tables:
            self._insert_into(self._tables, record)
        elif len(self.records) > COMPARED_BY_LOCATIONS:
            tables: list[_Table] = []
            for known in reversed(self.records):
                self._insert_into(tables, known)
            self._tables = tables  # complete: other threads may read it

    def _insert_into(self, tables: list[_Table], record: Record) -> None:
        holders, keys = location_keys(record.watch)
        self._holders |= holders
        table = next((table for table in tables if table.tells_apart(keys)), None)
        if table is None:
            table = _Table(_Same)
            tables.append(table)
        table.insert(record, keys)

    def candidates(self) -> Iterable[Record]:
        return _candidates(self._tables, self._read) if self._tables else self.records

    def _read(self, column: Any) -> Hashable:
        location: Location = column
        return current_key(self._holders[location.holder], location)


class _Table:
    """Records by those of their common columns that set most of them apart.

    A large model has thousands of columns that are the same in all records: they are kept once.
    """

    def __init__(self, new_group: Callable[[], _Same]) -> None:
        self._new_group = new_group
        self._rows: list[tuple[Record, dict[Hashable, Hashable]]] = []
        """Each record with the keys in which it differs from the first."""
        self._first: dict[Hashable, Hashable] = {}
        """The keys of the first record in the columns that all records have."""
        self._found: dict[Hashable, set[Hashable]] = {}
        """The keys in each column in which records differ."""
        self._chosen: tuple[tuple[Hashable, ...], dict[Hashable, _Same]] = (), {}
        """The compared columns, and the records by their keys; replaced together."""

    def tells_apart(self, keys: dict[Hashable, Hashable]) -> bool:
        """True if a record with these keys can be compared with the others."""
        columns, _ = self._chosen
        if columns:
            return all(column in keys for column in columns)
        differs = any(keys.get(column, key) != key for column, key in self._first.items())
        return differs or keys.keys() == self._first.keys()

    def insert(self, record: Record, keys: dict[Hashable, Hashable]) -> None:
        if not self._rows:
            self._first = keys
        self._first = first = {c: key for c, key in self._first.items() if c in keys}
        row = {column: keys[column] for column, key in first.items() if keys[column] != key}
        self._rows.append((record, row))
        self._found = found = {c: found for c, found in self._found.items() if c in keys}
        for column, key in row.items():
            found.setdefault(column, {first[column]}).add(key)
        columns, groups = self._chosen
        best = sorted(found, key=lambda column: -len(found[column]))[:MAX_COLUMNS]
        if set(best) != set(columns):
            columns, groups = tuple(best), {}
            for other, its_row in self._rows[:-1]:
                self._add(groups, columns, other, its_row)
        self._add(groups, columns, record, row)
        self._chosen = columns, groups

    def _add(
        self,
        groups: dict[Hashable, _Same],
        columns: tuple[Hashable, ...],
        record: Record,
        row: dict[Hashable, Hashable],
    ) -> None:
        """Put a record before the others with the same keys."""
        key = tuple(row.get(column, self._first[column]) for column in columns)
        if key not in groups:
            groups[key] = self._new_group()
        groups[key].insert(record)

    def all(self) -> list[Record]:
        return [record for record, _ in self._rows]

    def candidates(self, read: Callable[[Hashable], Hashable]) -> Iterable[Record]:
        columns, groups = self._chosen
        try:
            key = tuple(map(read, columns))
        except LookupError:  # an argument is not passed, or a location is empty
            return ()
        except Exception:  # an argument has no sizes, or they are symbols
            return self.all()
        group = groups.get(key)
        return () if group is None else group.candidates()


def _candidates(tables: Iterable[_Table], read: Callable[[Hashable], Hashable]) -> list[Record]:
    found: list[Record] = []
    for table in tuple(tables):
        found += table.candidates(read)
    return found

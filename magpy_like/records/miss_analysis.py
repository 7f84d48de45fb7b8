"""Misses generalise: what caused them varies from then on (design, section 6; MagPy, section 6.2).

The variables that a call has otherwise than the records there are, and nothing else, are lifted by
the next monitor run: numbers one by one, sizes dimension by dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from magpy_like.errors import DynamicDimensionError
from magpy_like.monitor.symbolic.dynamic_marks import has_marked_tensors, marked_dimensions
from magpy_like.monitor.symbolic.variation import Path, Variation
from magpy_like.synthesis.guard.expected_values import differences, other_lengths
from magpy_like.synthesis.record import Record

RECORD_LIMIT = 8
"""Records per compiled function, after which it runs eagerly. What follows a split may have as many
for each of the modules that a loop comes to there."""
GENERALISE_AFTER = 1
"""Records per compiled function, after which what varies is lifted."""


@dataclass(frozen=True)
class Limits:
    """``record_limit`` and ``generalise_after`` of one compiled function."""

    records: int = RECORD_LIMIT
    generalise_after: int = GENERALISE_AFTER

    @classmethod
    def of(cls, options: dict[str, Any] | None) -> tuple[Limits, dict[str, Any] | None]:
        """The limits among the options, and what is left for the backend.

        Raises:
            ValueError: a limit is no positive number.
        """
        rest = dict(options or {})
        given = {
            "records": rest.pop("record_limit", RECORD_LIMIT),
            "generalise_after": rest.pop("generalise_after", GENERALISE_AFTER),
        }
        for name, value in given.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a positive int, not {value!r}")
        return cls(**given), rest or None


class Varying:
    """What has varied between the calls of one compiled function."""

    def __init__(self, dynamic: bool | None, inner: bool) -> None:
        """``inner`` says whether the arguments are what open frames hold. There text varies as
        numbers do, for it is in the making; one that a program is given is a mode, most likely. And
        a list that varies in length may cut the program, for it is cut already."""
        self.dynamic, self._inner = dynamic, inner
        self._cuts_at_lists = inner
        self.counts: set[Path] = set()
        """Where lists and deques are whose length has varied."""
        self.lengths: set[Path] = set()
        self._just_learnt: set[Path] = set()
        """The lengths that the last miss was the first to vary."""
        self.numbers: set[Path] = set()
        self.dims: dict[Path, set[int]] = {}
        self._names: dict[Path, str] = {}
        self._marked: dict[Path, Collection[int]] = {}

    def expect(self, place: Path) -> None:
        """The number at a place is a result, so it will be another one every time."""
        if self.dynamic is not False:
            self.numbers.add(place)

    def expect_sizes(self, place: Path, dims: Collection[int]) -> None:
        """The tensor at a place is a result, of other sizes in these dimensions every time."""
        if self.dynamic is not False and dims:
            self.dims.setdefault(place, set()).update(dims)

    def learn(
        self, records: Iterable[Record], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A call has missed all records."""
        if self.dynamic is False:
            return
        known = set(self.lengths)
        for record in records:
            for place, dim in differences(record.expected, args, kwargs):
                if dim is None and not self._counts(record.expected.numbers[place]):
                    continue
                self._names[place] = record.expected.names[place]
                if dim is None:
                    self.numbers.add(place)
                else:
                    self.dims.setdefault(place, set()).add(dim)
            found = record.expected
            self.counts.update(other_lengths(found, found.counts, args, kwargs))
            if self._cuts_at_lists:
                self.lengths.update(other_lengths(found, found.lengths, args, kwargs))
        self._just_learnt = self.lengths - known

    def outdates(self, record: Record) -> bool:
        """Whether a record relies on a length that has varied: the program is cut there. Where it
        could not be, records that are made since rely on it too, and are as good as others."""
        return not self._just_learnt.isdisjoint(record.expected.lengths)

    def keep_lengths(self) -> bool:
        """From now on lists have the lengths that they have; whether any varied before."""
        varied, self.lengths, self._cuts_at_lists = bool(self.lengths), set(), False
        return varied

    def learn_from(self, record: Record, others: Iterable[Record]) -> None:
        """A new record expects other numbers than those before, or counts some up itself."""
        if self.dynamic is False:
            return
        self.numbers |= record.rewritten
        for other in others:
            for place, value in record.expected.numbers.items():
                before = other.expected.numbers.get(place, value)
                if type(before) is type(value) and before != value and self._counts(value):
                    self.numbers.add(place)
                    self._names[place] = record.expected.names[place]

    def _counts(self, value: Any) -> bool:
        return self._inner or type(value) is not str

    def in_words(self) -> list[str]:
        """The numbers and sizes that have varied."""
        numbers = [self._names[place] for place in self.numbers if place in self._names]
        sizes = [
            f"{self._names[place]}.size({dim})"
            for place, dims in self.dims.items()
            for dim in dims
            if place in self._names
        ]
        return sorted([*numbers, *sizes])

    def check_marks(self, record: Record) -> None:
        """Raises DynamicDimensionError: a marked dimension does not vary in a new record."""
        marks, self._marked = self._marked, {}
        found = record.expected
        for place, dims in marks.items():
            for dim in dims:
                size = found.layouts[place].sizes[dim] if place in found.layouts else None
                least, most = found.free.get(place, {}).get(dim, (size, size))
                if size is not None and least == most:
                    at = found.reasons.get((place, dim)) or "it is not followed through the program"
                    reason = "0 and 1 are sizes like no others" if size < 2 else at
                    name = found.names.get(place, "a tensor")
                    raise DynamicDimensionError(f"dimension {dim} of {name}", size, reason)

    def variation(self) -> Variation:
        """What a monitor run must not rely on."""
        numbers = frozenset(self.numbers)
        lists = frozenset(self.lengths), frozenset(self.counts)
        if self.dynamic:
            varied = {place: frozenset(dims) for place, dims in self.dims.items()}
            return Variation(numbers, _all_dims, *lists, varied)
        if self.dynamic is False or not (self.dims or numbers or has_marked_tensors()):
            return Variation(numbers, None, *lists)
        return Variation(numbers, self._some_dims, *lists)

    def _some_dims(self, path: Path, tensor: torch.Tensor) -> Collection[int]:
        marks = marked_dimensions(tensor)
        if marks:
            self._marked[path] = marks
        return {*self.dims.get(path, ()), *marks}


def _all_dims(path: Path, tensor: torch.Tensor) -> Collection[int]:
    return range(tensor.dim())

"""Generalisation of misses (MagPy, section 6.2): the values that caused a miss are lifted.

The next monitor run lifts the values in which a call differs from the records, and no others:
numbers one by one, sizes and strides dimension by dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch

from magpy_like.errors import DynamicDimensionError
from magpy_like.monitor.symbolic.dynamic_marks import (
    marked_dimensions,
    may_have_marks,
    static_dimensions,
    wished_dimensions,
)
from magpy_like.monitor.symbolic.variation import Path, Variation
from magpy_like.synthesis.guard.expected_values import (
    differences,
    other_lengths,
    other_strides,
)
from magpy_like.synthesis.record import Record


class Varying:
    """The access paths at which values have varied between calls of one compiled function."""

    def __init__(self, dynamic: bool | None, *, is_continuation: bool) -> None:
        """
        Args:
            dynamic: The argument of ``compile``.
            is_continuation: True if the arguments are the contents of active frames. Then strings
                are lifted like numbers: they are intermediate results, whereas a string argument
                of a program is probably a mode. And lists of varying length split the program,
                which is split anyway.
        """
        self.dynamic, self._is_continuation = dynamic, is_continuation
        self._splits_at_lists = is_continuation
        self.counts: set[Path] = set()
        """Lists and deques whose length has varied."""
        self.lengths: set[Path] = set()
        """Lists of varying length at which the program is split."""
        self._new_lengths: set[Path] = set()
        """The lengths that varied for the first time in the last miss."""
        self.numbers: set[Path] = set()
        """Numbers that have varied."""
        self.dims: dict[Path, set[int]] = {}
        """Dimensions of tensors whose size has varied."""
        self.strides: dict[Path, set[int]] = {}
        """Dimensions of tensors whose stride has varied, and not as a product of sizes."""
        self._names: dict[Path, str] = {}
        self._marked: dict[Path, Collection[int]] = {}

    def expect(self, path: Path) -> None:
        """Expect a number that varies with every call at a path: it is a result."""
        if self.dynamic is not False:
            self.numbers.add(path)

    def expect_sizes(self, path: Path, dims: Collection[int]) -> None:
        """Expect a tensor whose sizes in these dimensions vary at a path: it is a result."""
        if self.dynamic is not False and dims:
            self.dims.setdefault(path, set()).update(dims)

    def learn(
        self, records: Iterable[Record], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note how a call that missed differs from the records."""
        if self.dynamic is False:
            return
        before = set(self.lengths)
        for record in records:
            for path, dim in differences(record.expected, args, kwargs):
                if dim is None and not self._may_vary(record.expected.numbers[path]):
                    continue
                self._names[path] = record.expected.names[path]
                if dim is None:
                    self.numbers.add(path)
                else:
                    self.dims.setdefault(path, set()).add(dim)
            for path, dim in other_strides(record.expected, args, kwargs):
                self._names[path] = record.expected.names[path]
                self.strides.setdefault(path, set()).add(dim)
            found = record.expected
            self.counts.update(other_lengths(found, found.counts, args, kwargs))
            if self._splits_at_lists:
                self.lengths.update(other_lengths(found, found.lengths, args, kwargs))
        self._new_lengths = self.lengths - before

    def outdates(self, record: Record) -> bool:
        """True if a record relies on a length that varied for the first time in the last miss.

        The program is split at that list from now on. If that fails, later records rely on the
        length as well; they are kept.
        """
        return not self._new_lengths.isdisjoint(record.expected.lengths)

    def keep_lengths(self) -> bool:
        """Stop splitting at lists of varying length; True if there were any."""
        varied, self.lengths, self._splits_at_lists = bool(self.lengths), set(), False
        return varied

    def learn_from(self, record: Record, others: Iterable[Record]) -> None:
        """Note the differences of a new record from earlier ones, and the numbers that it
        overwrites."""
        if self.dynamic is False:
            return
        self.numbers |= record.rewritten
        for other in others:
            for path, value in record.expected.numbers.items():
                before = other.expected.numbers.get(path, value)
                if type(before) is type(value) and before != value and self._may_vary(value):
                    self.numbers.add(path)
                    self._names[path] = record.expected.names[path]

    def _may_vary(self, value: Any) -> bool:
        return self._is_continuation or type(value) is not str

    def labels(self) -> list[str]:
        """Labels of the numbers, sizes and strides that have varied."""
        numbers = [self._names[path] for path in self.numbers if path in self._names]
        sizes = [
            f"{self._names[path]}.size({dim})"
            for path, dims in self.dims.items()
            for dim in dims
            if path in self._names
        ]
        strides = [
            f"{self._names[path]}.stride({dim})"
            for path, dims in self.strides.items()
            for dim in dims
        ]
        return sorted([*numbers, *sizes, *strides])

    def check_marks(self, record: Record) -> None:
        """
        Raises:
            DynamicDimensionError: a dimension marked as dynamic is specialized in a new record.
        """
        marks, self._marked = self._marked, {}
        found = record.expected
        for path, dims in marks.items():
            for dim in dims:
                size = found.layouts[path].sizes[dim] if path in found.layouts else None
                least, most = found.size_ranges.get(path, {}).get(dim, (size, size))
                if size is not None and least == most:
                    location = found.specialized_at.get((path, dim))
                    location = location or "it is not followed through the program"
                    reason = "0 and 1 are sizes like no others" if size < 2 else location
                    name = found.names.get(path, "a tensor")
                    raise DynamicDimensionError(f"dimension {dim} of {name}", size, reason)

    def variation(self, arguments: Iterable[Any] = ()) -> Variation:
        """The values that a monitor run on these arguments lifts."""
        numbers = frozenset(self.numbers)
        strides = {path: frozenset(dims) for path, dims in self.strides.items()}
        others = strides, frozenset(self.lengths), frozenset(self.counts)
        if self.dynamic:
            varied = {path: frozenset(dims) for path, dims in self.dims.items()}
            return Variation(numbers, self._all_dims, *others, varied)
        varies = self.dims or self.strides or numbers or may_have_marks(arguments)
        dims = self._some_dims if varies and self.dynamic is not False else None
        return Variation(numbers, dims, *others)

    def _some_dims(self, path: Path, tensor: torch.Tensor) -> Collection[int]:
        found = {*self.dims.get(path, ()), *wished_dimensions(tensor)}
        return (found - {*static_dimensions(tensor)}) | self._marks(path, tensor)

    def _all_dims(self, path: Path, tensor: torch.Tensor) -> Collection[int]:
        found = {*range(tensor.dim())}
        return (found - {*static_dimensions(tensor)}) | self._marks(path, tensor)

    def _marks(self, path: Path, tensor: torch.Tensor) -> set[int]:
        """The dimensions of a tensor that must be dynamic; :meth:`check_marks` checks them."""
        marks = {*marked_dimensions(tensor)}
        if marks:
            self._marked[path] = marks
        return marks

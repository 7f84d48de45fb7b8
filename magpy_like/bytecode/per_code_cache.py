"""Facts about code objects, kept as long as the code object."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Generic, TypeVar

T = TypeVar("T")


class _CodeRef(weakref.ref[CodeType]):
    __slots__ = ("key",)
    key: int


class PerCode(Generic[T]):
    """A mapping from code *objects*: code objects of different files may compare equal.

    An entry goes with its code object, unless its value keeps that alive.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[_CodeRef, T]] = {}

    def __contains__(self, code: object) -> bool:
        return id(code) in self._entries

    def __getitem__(self, code: CodeType) -> T:
        return self._entries[id(code)][1]

    def __setitem__(self, code: CodeType, value: T) -> None:
        ref = _CodeRef(code, self._forget)
        ref.key = id(code)
        self._entries[ref.key] = ref, value

    def _forget(self, ref: _CodeRef) -> None:
        self._entries.pop(ref.key, None)

    def get(self, code: CodeType) -> T | None:
        entry = self._entries.get(id(code))
        return None if entry is None else entry[1]


def per_code(compute: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Cache the results of ``compute`` by code object."""
    known: PerCode[T] = PerCode()
    entries = known._entries

    @functools.wraps(compute)
    def look_up(code: CodeType) -> T:
        found = entries.get(id(code))
        if found is None:
            known[code] = result = compute(code)
            return result
        return found[1]

    return look_up

"""A cache for facts about code objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

T = TypeVar("T")


def per_code(compute: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Cache the results of ``compute`` by code *object*, for as long as the process lives.

    ``functools.cache`` does not do: code objects of different files may compare equal.
    """
    known: dict[int, tuple[CodeType, T]] = {}

    @functools.wraps(compute)
    def look_up(code: CodeType) -> T:
        found = known.get(id(code))
        if found is None:
            found = known[id(code)] = (code, compute(code))
        return found[1]

    return look_up

"""Which containers in results of cached functions are one object.

Two look-ups of one entry return one object, which may also be a variable of the program. A record
relies on that: a number read from the object is that of either look-up, and programs compare
identities. Numbers that differ between calls decide which entries are looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from magpy_like.monitor.symbolic.numbers.cached_look_ups import CONTAINERS, made_look_ups


class SameAliasing:
    """A check that containers in results are one object where they were in the recorded run.

    Args:
        results: those of the recorded look-ups by lifted numbers.
        positions: the places of these among all look-ups of the guard.
        fetched: variables of the recorded run that each call brings.
        fixed: the containers that each call has: variables, and parts of other look-ups' results.
    """

    def __init__(
        self,
        results: Iterable[Any],
        positions: Sequence[int],
        fetched: tuple[Any, ...],
        fixed: Iterable[Any],
    ) -> None:
        self._positions, self._fixed = positions, frozenset(map(id, fixed))
        self._expected = self._numbers(results, fetched)

    def __bool__(self) -> bool:
        """True if the results hold containers."""
        return bool(self._expected)

    def __call__(self, *fetched: Any) -> bool:
        made = made_look_ups()
        return self._numbers([made[k] for k in self._positions], fetched) == self._expected

    def _numbers(self, results: Iterable[Any], fetched: tuple[Any, ...]) -> list[int]:
        """A number for each container in the results, in order: equal for one object."""
        numbers = {id(variable): k for k, variable in enumerate(fetched)}
        found = []
        for container in containers_in(results):
            key = id(container)
            found.append(key if key in self._fixed else numbers.setdefault(key, len(numbers)))
        return found


def containers_in(values: Iterable[Any]) -> list[Any]:
    """The containers among ``values`` and in them, in order: those in one container once."""
    pending, seen, found = list(values)[::-1], set[int](), []
    while pending:
        value = pending.pop()
        if type(value) in CONTAINERS:
            found.append(value)
            if id(value) not in seen:
                seen.add(id(value))
                pending += reversed(value.values() if type(value) is dict else value)
    return found

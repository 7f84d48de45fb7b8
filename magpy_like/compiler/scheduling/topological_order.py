"""What must run before what, while things that run become one.

A topological order is kept up to date: whether one thing needs another, and where both together
have to be, takes a look at what lies between them in that order, and not at all the rest of a
program. After Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs"
(Journal of Experimental Algorithmics, 2006).
"""

from __future__ import annotations

from collections.abc import Mapping


class TopologicalOrder:
    """Things by number, each ``before`` those that need it."""

    def __init__(self, before: Mapping[int, set[int]]) -> None:
        """``before``: what each one needs directly, in an order in which they may run."""
        self.predecessors = dict(before)
        self._successors: dict[int, set[int]] = {k: set() for k in before}
        for k, needed in before.items():
            for other in needed:
                self._successors[other].add(k)
        self._sequence: list[int | None] = list(before)
        self._positions = {k: place for place, k in enumerate(before)}

    def depends_on(self, b: int, a: int) -> bool:
        """Must ``a`` run before ``b``?"""
        return a in self.predecessors[b] or self.between(a, b) is not None

    def between(self, a: int, b: int) -> int | None:
        """One that must run after ``a`` and before ``b``."""
        return next(
            (k for k in self._ancestors_after(b, self._positions[a]) if a in self.predecessors[k]),
            None,
        )

    def _ancestors_after(self, b: int, place: int) -> set[int]:
        """What must run before ``b``, of all that stands behind a place in the order."""
        found: set[int] = set()
        pending = [b]
        while pending:
            for k in self.predecessors[pending.pop()]:
                if self._positions[k] > place and k not in found:
                    found.add(k)
                    pending.append(k)
        return found

    def merge(self, a: int, b: int) -> None:
        """Make one of both, number ``a``. Nothing must run between them."""
        first, last = sorted((self._positions[a], self._positions[b]))
        ahead = self._ancestors_after(a if self._positions[a] == last else b, first)
        others = [k for k in self._sequence[first : last + 1] if k is not None and k not in (a, b)]
        # What one of them needs cannot need what else there is, so that this may wait for both.
        order = [k for k in others if k in ahead] + [a] + [k for k in others if k not in ahead]
        self._sequence[first : last + 1] = order + [None] * (last + 1 - first - len(order))
        del self._positions[b]
        self._positions |= {k: place for place, k in enumerate(order, first)}
        for edges, back in (
            (self.predecessors, self._successors),
            (self._successors, self.predecessors),
        ):
            for k in edges[b]:
                back[k].discard(b)
                back[k].add(a)
            edges[a] |= edges.pop(b)
        for edges in (self.predecessors, self._successors):
            edges[a] -= {a, b}

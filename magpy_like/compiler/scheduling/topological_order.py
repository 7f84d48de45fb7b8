"""A topological order of items, maintained while items merge.

Queries and merges visit only the items between the two in the order, not the whole program. After
Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs" (Journal of
Experimental Algorithmics, 2006).
"""

from __future__ import annotations

from collections.abc import Mapping


class TopologicalOrder:
    """Items by number; ``predecessors`` has the direct dependences of each."""

    def __init__(self, predecessors: Mapping[int, set[int]]) -> None:
        """``predecessors``: direct dependences of each item; the keys are in a valid order."""
        self.predecessors = dict(predecessors)
        self._successors: dict[int, set[int]] = {k: set() for k in predecessors}
        for k, needed in predecessors.items():
            for other in needed:
                self._successors[other].add(k)
        self._sequence: list[int | None] = list(predecessors)
        self._positions = {k: position for position, k in enumerate(predecessors)}

    def depends_on(self, b: int, a: int) -> bool:
        """True if ``a`` must run before ``b``."""
        return a in self.predecessors[b] or self.between(a, b) is not None

    def between(self, a: int, b: int) -> int | None:
        """An item that must run after ``a`` and before ``b``; None if there is none."""
        return next(
            (k for k in self._ancestors_after(b, self._positions[a]) if a in self.predecessors[k]),
            None,
        )

    def _ancestors_after(self, b: int, position: int) -> set[int]:
        """Transitive predecessors of ``b`` after a position in the order."""
        found: set[int] = set()
        pending = [b]
        while pending:
            for k in self.predecessors[pending.pop()]:
                if self._positions[k] > position and k not in found:
                    found.add(k)
                    pending.append(k)
        return found

    def merge(self, a: int, b: int) -> None:
        """Merge ``b`` into ``a``. No item may have to run between them."""
        first, last = sorted((self._positions[a], self._positions[b]))
        ahead = self._ancestors_after(a if self._positions[a] == last else b, first)
        others = [k for k in self._sequence[first : last + 1] if k is not None and k not in (a, b)]
        # Predecessors of either move before the merged item: they cannot depend on the other items
        # there.
        order = [k for k in others if k in ahead] + [a] + [k for k in others if k not in ahead]
        self._sequence[first : last + 1] = order + [None] * (last + 1 - first - len(order))
        del self._positions[b]
        self._positions |= {k: position for position, k in enumerate(order, first)}
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

"""What may differ at later calls, so that a monitor run must not take it for what it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.refgraph import Relation

Path = tuple[Relation, ...]
"""A way from the arguments, or from an object that is the same at every call, to a variable."""


def argument_path(key: int | str) -> Path:
    """The place of an argument, by position or keyword."""
    return (Relation(RelationKind.LOCAL, key),)


@dataclass(frozen=True)
class Variation:
    """``numbers`` are the places (see ``Recording.place``) whose numbers are lifted, ``dims`` gives
    the dimensions that may vary of a tensor at a place; None when no tensor has any. ``lengths``
    are the places of lists of which a record must not hold as many elements as there are, so that
    the program is cut where one is joined; ``counts`` those of all lists and deques that have had
    other lengths.
    ``varied`` gives the dimensions that have differed between calls; None for all of ``dims``."""

    numbers: frozenset[Path] = frozenset()
    dims: Callable[[Path, torch.Tensor], Collection[int]] | None = None
    lengths: frozenset[Path] = frozenset()
    counts: frozenset[Path] = frozenset()
    varied: Mapping[Path, Collection[int]] | None = None

    def has_varied(self, path: Path, dim: int) -> bool:
        return self.varied is None or dim in self.varied.get(path, ())


NOTHING_VARIES = Variation()

"""Variation between calls: the values that a monitor run lifts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.refgraph import Relation

Path = tuple[Relation, ...]
"""An access path to a variable, from the arguments or an object that is the same at every call."""


def argument_path(key: int | str) -> Path:
    """The access path of an argument, by position or keyword."""
    return (Relation(RelationKind.LOCAL, key),)


@dataclass(frozen=True)
class Variation:
    """The external values that a run lifts instead of guarding them, by access path."""

    numbers: frozenset[Path] = frozenset()
    """Paths of numbers to lift."""
    dims: Callable[[Path, torch.Tensor], Collection[int]] | None = None
    """Returns a tensor's dynamic dimensions; None if no tensor has any."""
    strides: Mapping[Path, Collection[int]] = field(default_factory=dict)
    """The dimensions of tensors whose stride has varied, and not as a product of sizes."""
    lengths: frozenset[Path] = frozenset()
    """Paths of lists whose length must not become a constant: the program splits where an operator
    joins one."""
    counts: frozenset[Path] = frozenset()
    """Paths of lists and deques that have had other lengths."""
    varied: Mapping[Path, Collection[int]] | None = None
    """The dimensions that have differed between calls; None for all of ``dims``."""

    def has_varied(self, path: Path, dim: int) -> bool:
        """True if a dynamic dimension has differed between calls."""
        return self.varied is None or dim in self.varied.get(path, ())


NOTHING_VARIES = Variation()

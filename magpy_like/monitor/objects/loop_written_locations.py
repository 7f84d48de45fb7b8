"""Locations that the iterations of a loop write to: attributes, elements, closure variables.

While an iteration runs in isolation, such a location holds a placeholder for any value that an
iteration may read there; the program's own value is restored afterwards. The recording ignores
reads and writes of the location meanwhile.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.native import NULL, instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation, ShadowNode
from magpy_like.split_points import LoopNotMergeable

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording


@dataclass(frozen=True, eq=False)
class Location:
    """A location: ``relation`` of ``owner``."""

    owner: Any
    relation: Relation

    @property
    def address(self) -> tuple[int, Any]:
        """A key that is equal for all access paths to the location."""
        within, key = self.owner, self.relation.key
        if self.relation.kind is RelationKind.ATTRIBUTE:
            within = instance_dict(within)
        elif type(within) is list and type(key) is int and key < 0:
            key += len(within)
        return id(within), key

    def get(self) -> Any:
        """The present value; NULL if there is none."""
        owner, (kind, key) = self.owner, self.relation
        try:
            if kind is RelationKind.CELL:
                return owner.cell_contents
            if kind is RelationKind.ATTRIBUTE:
                return instance_dict(owner)[key]
            if kind is RelationKind.SLOT:
                return lookup_in_type(type(owner), key).__get__(owner, type(owner))
            return owner[key]
        except (LookupError, AttributeError, ValueError):
            return NULL

    def put(self, value: Any) -> None:
        owner, (kind, key) = self.owner, self.relation
        if kind is RelationKind.CELL:
            owner.cell_contents = value
        elif kind is RelationKind.ATTRIBUTE:
            instance_dict(owner)[key] = value
        elif kind is RelationKind.SLOT:
            lookup_in_type(type(owner), key).__set__(owner, value)
        else:
            owner[key] = value


def location_of(owner: Any, kind: RelationKind, key: Any) -> Location | None:
    """The location of ``owner`` whose value is about to be replaced; None if it has no value, or if
    the write changes more than the location."""
    relation = Relation(kind, key)
    if kind is RelationKind.ATTRIBUTE:
        if is_instance(owner, torch.Tensor | type | types.ModuleType) or type(key) is not str:
            return None
        found = lookup_in_type(type(owner), key)
        if is_instance(found, types.MemberDescriptorType):
            relation = Relation(RelationKind.SLOT, key)
        elif lookup_in_type(type(found), "__set__") is not NULL or not instance_dict(owner):
            return None
    elif kind is RelationKind.KEY:
        if type(owner) is list and type(key) is int:
            relation = Relation(RelationKind.ITEM, key)
        elif type(owner) is not dict or type(key) not in (int, str):
            return None
    location = Location(owner, relation)
    return None if location.get() is NULL else location


_KINDS = frozenset(
    {RelationKind.ATTRIBUTE, RelationKind.SLOT, RelationKind.KEY, RelationKind.ITEM,
     RelationKind.CELL, RelationKind.GLOBAL}
)  # fmt: skip


class SubstitutedLocations:
    """Locations that hold placeholders while an iteration runs in isolation."""

    def __init__(self, rec: Recording | None = None, lists: Iterable[list[Any]] = ()) -> None:
        """``lists`` are the lists to which iterations are known to append."""
        self._rec = rec
        self._locations: dict[tuple[int, Any], Location] = {}
        self._lists: dict[int, list[Any]] = {}
        self._undo: list[Callable[[], None]] = []
        """Functions that restore the program's values, to be called in reverse order."""
        for value in lists:
            self._keep(value)

    def allow(self, location: Location) -> None:
        """Let the iteration write to a location."""
        if location.address not in self._locations:
            self._locations[location.address] = location
            self._undo.append(partial(location.put, location.get()))

    def allow_growth(self, value: Any) -> bool:
        """Let the iteration change a list that the program created; False for any other value."""
        if (
            type(value) is not list
            or self._rec is None
            or self._rec.variables.node(value) is not None
        ):
            return False
        self._keep(value)
        return True

    def _keep(self, value: list[Any]) -> None:
        if id(value) not in self._lists:
            self._lists[id(value)] = value
            self._undo.append(partial(value.__setitem__, slice(None), list(value)))

    @property
    def locations(self) -> list[Location]:
        return [*self._locations.values()]

    @property
    def lists(self) -> list[list[Any]]:
        return [*self._lists.values()]

    def covers(self, node: ShadowNode, relation: Relation) -> bool:
        """True if the location holds a placeholder."""
        if not self._locations or relation.kind not in _KINDS:
            return False
        return Location(node.variable, relation).address in self._locations

    def check(self, node: ShadowNode) -> None:
        """Check a read of all contents of an external variable.

        Raises:
            LoopNotMergeable: one of its locations holds a placeholder.
        """
        owner = node.variable
        for address, location in self._locations.items():
            if owner is location.owner or id(owner) == address[0]:
                raise LoopNotMergeable(
                    f"reads all of a {node.type.__qualname__} that iterations write to"
                )

    @contextmanager
    def substituting(self, values: Sequence[tuple[Location, Any]]) -> Iterator[FinalContents]:
        """Store placeholders in locations for the duration of the context.

        Yields:
            The contents at the end, complete when the context is left.
        """
        assert self._rec is not None
        final = FinalContents()
        outer, self._rec.reads.substituted = self._rec.reads.substituted, self
        try:
            for location, value in values:
                self.allow(location)
                location.put(value)
            yield final
        finally:
            final.locations = [location.get() for location in self.locations]
            final.lists = [list(value) for value in self.lists]
            for undo in reversed(self._undo):
                undo()
            self._rec.reads.substituted = outer


@dataclass
class FinalContents:
    """Contents of locations and lists at the end of an iteration."""

    locations: list[Any] = field(default_factory=list)
    lists: list[list[Any]] = field(default_factory=list)

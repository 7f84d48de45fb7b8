"""Places of objects that the rounds of a loop write to: attributes, elements, shared variables.

While a round runs beside the program such a place holds what any round may find there, and what the
program has there is put back behind it. So the record learns nothing of what is there meanwhile.
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
    """One place: what ``relation`` leads to from ``owner``."""

    owner: Any
    relation: Relation

    @property
    def address(self) -> tuple[int, Any]:
        """The same for all ways to the place."""
        within, key = self.owner, self.relation.key
        if self.relation.kind is RelationKind.ATTRIBUTE:
            within = instance_dict(within)
        elif type(within) is list and type(key) is int and key < 0:
            key += len(within)
        return id(within), key

    def get(self) -> Any:
        """What is there; NULL for nothing."""
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
    """The place where ``owner`` holds something now that is about to be replaced; None where
    nothing is there, or more than that would change."""
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
    place = Location(owner, relation)
    return None if place.get() is NULL else place


_KINDS = frozenset(
    {RelationKind.ATTRIBUTE, RelationKind.SLOT, RelationKind.KEY, RelationKind.ITEM,
     RelationKind.CELL, RelationKind.GLOBAL}
)  # fmt: skip


class SubstitutedLocations:
    """Objects that hold something else than the program's, while a round runs beside it."""

    def __init__(self, rec: Recording | None = None, lists: Iterable[list[Any]] = ()) -> None:
        """``lists`` are those to which rounds are known to append."""
        self._rec = rec
        self._places: dict[tuple[int, Any], Location] = {}
        self._lists: dict[int, list[Any]] = {}
        self._undo: list[Callable[[], None]] = []
        """What puts back what the program has, last things first."""
        for value in lists:
            self._keep(value)

    def allow(self, place: Location) -> None:
        """The round may put something into this place."""
        if place.address not in self._places:
            self._places[place.address] = place
            self._undo.append(partial(place.put, place.get()))

    def allow_growth(self, value: Any) -> bool:
        """Whether the round may change this, a list that the program has made."""
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
    def places(self) -> list[Location]:
        return [*self._places.values()]

    @property
    def lists(self) -> list[list[Any]]:
        return [*self._lists.values()]

    def covers(self, node: ShadowNode, relation: Relation) -> bool:
        """Whether what is found there is another value than the program's."""
        if not self._places or relation.kind not in _KINDS:
            return False
        return Location(node.variable, relation).address in self._places

    def check(self, node: ShadowNode) -> None:
        """A variable from outside is relied on as a whole.

        Raises:
            Split: it has another value somewhere than the program has there.
        """
        owner = node.variable
        for address, place in self._places.items():
            if owner is place.owner or id(owner) == address[0]:
                raise LoopNotMergeable(
                    f"reads all of a {node.type.__qualname__} that iterations write to"
                )

    @contextmanager
    def substituting(self, values: Sequence[tuple[Location, Any]]) -> Iterator[FinalContents]:
        """Have other values there for a while; tells what is there in the end."""
        assert self._rec is not None
        left = FinalContents()
        outer, self._rec.reads.substituted = self._rec.reads.substituted, self
        try:
            for place, value in values:
                self.allow(place)
                place.put(value)
            yield left
        finally:
            left.places = [place.get() for place in self.places]
            left.lists = [list(value) for value in self.lists]
            for undo in reversed(self._undo):
                undo()
            self._rec.reads.substituted = outer


@dataclass
class FinalContents:
    """What a round has left in places and lists."""

    places: list[Any] = field(default_factory=list)
    lists: list[list[Any]] = field(default_factory=list)

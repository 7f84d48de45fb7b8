"""ShadowNode and ShadowVersion (MagPy, Figure 8): one variable, and its versions.

A ShadowNode represents one variable. Heap objects are looked up by ``id``; the graph keeps them
alive until the record is synthesised. Plain values (numbers, strings, ...) have no identity: the
edge along which the program read the value identifies its node.

Guard and mock need only the first and the last version of a node, so the versions between them
keep no edges.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import MonitorWeakRef

REFERENT = "()"
"""The key of the relation from a weak reference to its object."""
MRO = "__mro__"
"""The key of the relation from a class to its method resolution order."""


_BESIDE_CONTENTS = frozenset(
    (
        RelationKind.ATTRIBUTE, RelationKind.HAS_ATTRIBUTE, RelationKind.SLOT, RelationKind.DICT,
        RelationKind.TYPE,
    )
)  # fmt: skip


def is_of_contents(relation: Relation) -> bool:
    """True for a relation to what a container holds, false for one to an attribute: an instance of
    a subclass of a container has both."""
    return relation.kind not in _BESIDE_CONTENTS


class Fact(enum.Enum):
    """A property of an external variable that the guard checks, besides its access path."""

    __hash__ = object.__hash__  # as of RelationKind

    TYPE = "type"
    VALUE = "value"
    METADATA = "metadata"  # of a tensor: all but its data
    LENGTH = "length"
    TRUTH = "truth"  # of a container: that it is not empty
    KEYS = "keys"  # of a mapping or set, in order
    IDENTITY = "identity"


class ByIdentity:
    """A dictionary key that is compared by identity, as a tensor or a function is.

    Refers weakly to the key: a relation does not keep the variable alive.
    """

    __slots__ = ("_held", "_id", "is_new", "node_id")

    def __init__(self, variable: Any, node_id: int | None, *, is_new: bool) -> None:
        """
        Args:
            node_id: None for a key that is the same object at every call.
            is_new: True if the program has created the variable.

        Raises:
            TypeError: the variable does not support weak references.
        """
        self._held, self._id = MonitorWeakRef(variable), id(variable)
        self.node_id, self.is_new = node_id, is_new

    @property
    def variable(self) -> Any:
        """The key itself; None if it is destroyed."""
        return self._held()

    def __eq__(self, other: object) -> bool:
        if self is other or not is_instance(other, ByIdentity) or self._id != other._id:
            return self is other
        variable = self.variable
        return variable is not None and variable is other.variable

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"<{type(self.variable).__qualname__}>"


class Relation(NamedTuple):
    """The label of an edge: how a variable refers to another one."""

    kind: RelationKind
    key: Hashable = None

    def __str__(self) -> str:
        return self.kind.value if self.key is None else f"{self.kind.value} {self.key!r}"


@dataclass(slots=True)
class ShadowVersion:
    """A variable between two in-place changes: its value if plain, and its edges to node ids."""

    value: Any = None
    refs: dict[Relation, int] = field(default_factory=dict)


class ShadowNode:
    """One variable of the program, with its versions."""

    __slots__ = (
        "_held",
        "_weak",
        "contents",
        "existed",
        "facts",
        "node_id",
        "plain",
        "reinserted",
        "replays",
        "rewritten",
        "type",
        "versions",
        "written",
    )

    def __init__(self, node_id: int, value: Any, *, existed: bool, plain: bool = False) -> None:
        self.node_id = node_id
        self.existed = existed
        """Whether the variable is external: it existed when the region was entered."""
        self.plain = plain
        """Whether it is compared by value."""
        self.type = type(value)
        self._weak = is_instance(value, torch.Tensor)
        self._held: Any = MonitorWeakRef(value) if self._weak else value
        self.versions = [ShadowVersion()]
        self.facts: set[Fact] = set()
        """The facts about the first version that the guard checks."""
        self.written: dict[Relation, None] = {}
        """The relations that the program has set or removed, in order."""
        self.reinserted: set[Relation] = set()
        """Relations removed and set again: now the last in a dictionary's order."""
        self.contents: Any = None
        """A shallow copy of a container's first version, taken before its first change."""
        self.replays: list[Any] = []
        """Changes that do not depend on the contents, in order, such as ``append``."""
        self.rewritten = False
        """Whether the container was changed as a whole: the mock restores its last contents."""

    @property
    def variable(self) -> Any:
        """The variable itself; None for a tensor that is destroyed."""
        return self._held() if self._weak else self._held

    def let_go(self) -> None:
        """Release the variable and the copy of its contents."""
        if not self._weak:
            self._held = None
        self.contents, self.replays = None, []

    @property
    def first(self) -> ShadowVersion:
        """Version 0: the variable at the entry of the region, or at its creation."""
        return self.versions[0]

    @property
    def last(self) -> ShadowVersion:
        """The current version."""
        return self.versions[-1]

    @property
    def changed(self) -> bool:
        """Whether the program has changed the variable in place."""
        return len(self.versions) > 1

    def rewrites(self, relation: Relation) -> bool:
        """True if the mock restores a location with the container's last contents."""
        return self.rewritten and is_of_contents(relation)

    def __repr__(self) -> str:
        return f"SN #{self.node_id} {self.type.__name__} v{len(self.versions) - 1}"

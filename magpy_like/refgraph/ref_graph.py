"""RefGraph, ShadowNode and ShadowVersion (MagPy, Figure 8), with the update rules of section 5.3.2.

A ShadowNode stands for one variable. Heap objects are found again by their ``id``; the graph keeps
them alive for as long as that could matter. Plain values (numbers, strings, ...) have no identity
of their own: such a node is known by *where it was read*, that is by the edge that leads to it.

Only the first and the last version of a node are needed for guard and mock, so the versions between
them keep no edges.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import MonitorWeakRef

EXTERNAL = 0
"""The id of the node that stands for everything outside the compiled region (SN #0)."""

ABSENT = -1
"""The destination of an edge that was followed and led nowhere, such as a missing key."""


REFERENT = "()"
"""The name of the slot of a weak reference that leads to its object."""
MRO = "__mro__"
"""The name of the slot of a class that holds the classes that it looks its attributes up in."""


class Fact(enum.Enum):
    """What the program relied on about a variable that it met, beyond how it got there."""

    TYPE = "type"
    VALUE = "value"
    METADATA = "metadata"  # of a tensor: all but its data
    LENGTH = "length"
    TRUTH = "truth"  # of a container: that it holds something
    KEYS = "keys"  # of a mapping or set, in order
    IDENTITY = "identity"


class ByIdentity:
    """A dictionary's key that is equal to itself alone, as a tensor or a function is.

    Which of them lies behind a relation is which variable was looked up; that is not kept alive.
    """

    __slots__ = ("_held", "_id", "is_new", "node_id")

    def __init__(self, variable: Any, node_id: int | None, *, is_new: bool) -> None:
        """``is_new`` says that the program has made the variable; that of a key which is the same
        at every call may have no node.

        Raises:
            TypeError: there are no weak references to the variable.
        """
        self._held, self._id = MonitorWeakRef(variable), id(variable)
        self.node_id, self.is_new = node_id, is_new

    @property
    def variable(self) -> Any:
        """The key itself; None when it is gone."""
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
    """The label of an edge: the way from a variable to one that it refers to."""

    kind: RelationKind
    key: Hashable = None

    def __str__(self) -> str:
        return self.kind.value if self.key is None else f"{self.kind.value} {self.key!r}"


@dataclass(slots=True)
class ShadowVersion:
    """A variable between two in-place changes: its value, if plain, and what it refers to."""

    value: Any = None
    refs: dict[Relation, int] = field(default_factory=dict)


class ShadowNode:
    """One variable of the program.

    ``existed`` says whether it was there when the region was entered. ``facts`` is what the guard
    has to check of its first version. ``written`` are the relations that the program has set.
    """

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
        self.plain = plain
        self.type = type(value)
        self._weak = is_instance(value, torch.Tensor)
        self._held: Any = MonitorWeakRef(value) if self._weak else value
        self.versions = [ShadowVersion()]
        self.facts: set[Fact] = set()
        self.written: dict[Relation, None] = {}
        self.reinserted: set[Relation] = set()
        """What the program removed and put there again, behind all else in a dictionary's order."""
        self.contents: Any = None
        """A shallow copy of a container's first version, taken before its first change."""
        self.replays: list[Any] = []
        """Changes that depend on nothing in the container, in order."""
        self.rewritten = False
        """Whether the container was changed as a whole, so that only its last contents count."""

    @property
    def variable(self) -> Any:
        """The variable itself; None for a tensor that is gone."""
        return self._held() if self._weak else self._held

    def let_go(self) -> None:
        """Hold the variable no more, nor what it held."""
        if not self._weak:
            self._held = None
        self.contents, self.replays = None, []

    @property
    def first(self) -> ShadowVersion:
        return self.versions[0]

    @property
    def last(self) -> ShadowVersion:
        return self.versions[-1]

    @property
    def changed(self) -> bool:
        return len(self.versions) > 1

    def __repr__(self) -> str:
        return f"SN #{self.node_id} {self.type.__name__} v{len(self.versions) - 1}"


class RefGraph:
    """The runtime state of one monitor run, as far as the program has looked at it."""

    def __init__(self) -> None:
        self.nodes: list[ShadowNode] = [ShadowNode(EXTERNAL, None, existed=True)]
        self._by_id: dict[int, ShadowNode] = {}

    @property
    def external(self) -> ShadowNode:
        return self.nodes[EXTERNAL]

    def __iter__(self) -> Iterator[ShadowNode]:
        return iter(self.nodes)

    def let_go(self) -> None:
        """Hold no variables any more."""
        for node in self.nodes:
            node.let_go()

    def get_node_by_id(self, node_id: int) -> ShadowNode:
        return self.nodes[node_id]

    def get_node_by_var(self, variable: Any) -> ShadowNode | None:
        """The node of a heap object, or None when the program has not met it."""
        node = self._by_id.get(id(variable))
        return node if node is not None and node.variable is variable else None

    def get_node_at(self, address: int) -> ShadowNode | None:
        """The node of the heap object that has this ``id``, or None when there is none."""
        node = self._by_id.get(address)
        return node if node is not None and id(node.variable) == address else None

    def add(self, variable: Any, *, existed: bool, plain: bool = False) -> ShadowNode:
        """A new node. A plain value is not entered under its ``id``."""
        node = ShadowNode(len(self.nodes), variable, existed=existed, plain=plain)
        self.nodes.append(node)
        if plain:
            node.first.value = variable
        else:
            self._by_id[id(variable)] = node
        return node

    def read(
        self, source: ShadowNode, relation: Relation, variable: Any, *, plain: bool = False
    ) -> ShadowNode:
        """``variable`` was reached from ``source``: update rule "read" (Figure 13a).

        When the last version has the edge, nothing is new. Otherwise the reference has been there
        from the beginning, so every version gets it; unless the program itself put it there.
        """
        found = source.last.refs.get(relation)
        if found is not None and found != ABSENT:
            return self.nodes[found]
        node = None if plain else self.get_node_by_var(variable)
        ours = relation in source.written or not source.existed
        if node is None:
            node = self.add(variable, existed=not ours, plain=plain)
        if ours:
            source.last.refs[relation] = node.node_id
            return node
        for version in source.versions:
            version.refs.setdefault(relation, node.node_id)
        return node

    def read_absent(self, source: ShadowNode, relation: Relation) -> None:
        """There was nothing at ``relation``, as in ``k not in d``."""
        if relation not in source.last.refs:
            for version in source.versions:
                version.refs.setdefault(relation, ABSENT)

    def write(self, source: ShadowNode, relation: Relation, variable: Any) -> None:
        """``variable`` was stored at ``relation``: update rule "write".

        Storing the object that is there already changes nothing.
        """
        node = self.get_node_by_var(variable)
        if node is not None and source.last.refs.get(relation) == node.node_id:
            return
        if source.last.refs.get(relation) == ABSENT and relation in source.written:
            del source.written[relation]
            source.reinserted.add(relation)
        version = self.in_place(source)
        if node is None:
            version.refs.pop(relation, None)
        else:
            version.refs[relation] = node.node_id
        source.written[relation] = None

    def delete(self, source: ShadowNode, relation: Relation) -> None:
        """What was at ``relation`` was removed."""
        self.in_place(source).refs[relation] = ABSENT
        source.written[relation] = None

    def in_place(self, node: ShadowNode) -> ShadowVersion:
        """The variable was changed: a new version that refers to what the last one referred to."""
        last = node.last
        version = ShadowVersion(last.value, dict(last.refs))
        if len(node.versions) > 1:
            last.refs = {}
        node.versions.append(version)
        return version

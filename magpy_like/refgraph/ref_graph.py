"""RefGraph (MagPy, Figure 8): nodes and edges of one monitor run, and update rules (5.3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magpy_like.refgraph.shadow_node import Relation, ShadowNode, ShadowVersion

EXTERNAL = 0
"""The id of the external node, the root of the graph (SN #0)."""

ABSENT = -1
"""The destination of an edge for a location without a value, such as a missing key."""


class RefGraph:
    """The part of the runtime state that the program has read or changed in one monitor run."""

    def __init__(self) -> None:
        self.nodes: list[ShadowNode] = [ShadowNode(EXTERNAL, None, existed=True)]
        self._by_id: dict[int, ShadowNode] = {}

    @property
    def external(self) -> ShadowNode:
        """The external node, which refers to all external variables."""
        return self.nodes[EXTERNAL]

    def __iter__(self) -> Iterator[ShadowNode]:
        return iter(self.nodes)

    def let_go(self) -> None:
        """Release all variables."""
        for node in self.nodes:
            node.let_go()

    def get_node_by_id(self, node_id: int) -> ShadowNode:
        return self.nodes[node_id]

    def get_node_by_var(self, variable: Any) -> ShadowNode | None:
        """The node of a heap object, or None if it has none."""
        node = self._by_id.get(id(variable))
        return node if node is not None and node.variable is variable else None

    def get_node_at(self, address: int) -> ShadowNode | None:
        """The node of the heap object with this ``id``, or None if there is none."""
        node = self._by_id.get(address)
        return node if node is not None and id(node.variable) == address else None

    def add(self, variable: Any, *, existed: bool, plain: bool = False) -> ShadowNode:
        """Add a node; the node of a plain value cannot be looked up by ``id``."""
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
        """Update rule "read" (Figure 13a): the program reached ``variable`` from ``source``.

        If the last version has the edge, the graph does not change. Otherwise the reference has
        existed from the beginning and is added to every version, unless the program has set it.
        """
        found = source.last.refs.get(relation)
        if found is not None and found != ABSENT:
            return self.nodes[found]
        node = None if plain else self.get_node_by_var(variable)
        is_new = relation in source.written or not source.existed
        if node is None:
            node = self.add(variable, existed=not is_new, plain=plain)
        if is_new:
            source.last.refs[relation] = node.node_id
            return node
        for version in source.versions:
            version.refs.setdefault(relation, node.node_id)
        return node

    def read_absent(self, source: ShadowNode, relation: Relation) -> None:
        """The program found no variable at ``relation``, as in ``k not in d``."""
        if relation not in source.last.refs:
            for version in source.versions:
                version.refs.setdefault(relation, ABSENT)

    def write(self, source: ShadowNode, relation: Relation, variable: Any) -> None:
        """Update rule "write": the program stored ``variable`` at ``relation``.

        Storing the same object again changes nothing.
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
        """The program removed the variable at ``relation``."""
        self.in_place(source).refs[relation] = ABSENT
        source.written[relation] = None

    def in_place(self, node: ShadowNode) -> ShadowVersion:
        """Update rule "in-place": a new version with the edges of the last one."""
        last = node.last
        version = ShadowVersion(last.value, dict(last.refs))
        if len(node.versions) > 1:
            last.refs = {}
        node.versions.append(version)
        return version

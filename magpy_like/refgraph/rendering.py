"""Rendering of a RefGraph as text, and for Graphviz (MagPy, Figure 7)."""

from __future__ import annotations

from magpy_like.annotation.schema import RelationKind
from magpy_like.refgraph.guard_and_mock_nodes import get_guard_nodes, get_mock_nodes
from magpy_like.refgraph.ref_graph import ABSENT, EXTERNAL, RefGraph
from magpy_like.refgraph.shadow_node import Relation, ShadowNode, ShadowVersion

_MAX_VALUE_LENGTH = 40
"""Characters of a plain value's text that are shown."""


def to_text(graph: RefGraph) -> str:
    """One paragraph per ShadowNode: type, use in guard and mock, and edges.

    Shows the first and the last version, which are those that keep edges.
    """
    guard, mock = _ids(get_guard_nodes(graph)), _ids(get_mock_nodes(graph))
    lines = []
    for node in graph:
        marks = [name for name, ids in (("guard", guard), ("mock", mock)) if node.node_id in ids]
        lines.append(f"SN #{node.node_id} {_description(node)}{_listed(marks)}")
        for number, version in _shown(node):
            edges = ", ".join(
                f"{_edge_label(relation)} → {_target(to)}" for relation, to in version.refs.items()
            )
            lines.append(f"    v{number}: {edges or 'no references'}")
    return "\n".join(lines)


def to_dot(graph: RefGraph) -> str:
    """A description for ``dot``: a record per ShadowNode, a field per version, edges between."""
    lines = ["digraph RefGraph {", "  rankdir=LR;", "  node [shape=record];"]
    for node in graph:
        versions = "|".join(f"<v{number}> v{number}" for number, _ in _shown(node))
        label = f"SN #{node.node_id}\\n{_escaped(_description(node))}"
        lines.append(f'  n{node.node_id} [label="{label}|{{{versions}}}"];')
    for node in graph:
        for number, version in _shown(node):
            for relation, to in version.refs.items():
                source = f"n{node.node_id}:v{number}"
                label = _escaped(_edge_label(relation))
                if to == ABSENT:
                    lines.append(f'  {source} -> absent [label="{label}", style=dashed];')
                else:
                    lines.append(f'  {source} -> n{to} [label="{label}"];')
    if any(ABSENT in version.refs.values() for node in graph for _, version in _shown(node)):
        lines.append("  absent [shape=plaintext];")
    return "\n".join([*lines, "}"])


def _shown(node: ShadowNode) -> list[tuple[int, ShadowVersion]]:
    last = len(node.versions) - 1
    return [(number, node.versions[number]) for number in sorted({0, last})]


def _description(node: ShadowNode) -> str:
    if node.node_id == EXTERNAL:
        return "external"
    origin = "" if node.existed else ", new"
    if node.plain:
        text = repr(node.first.value)
        short = text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"
        return f"{node.type.__qualname__} {short}{origin}"
    return f"{node.type.__qualname__}{origin}"


def _edge_label(relation: Relation) -> str:
    """The label of an edge; the key of a constant is only an address."""
    return relation.kind.value if relation.kind is RelationKind.CONSTANT else str(relation)


def _target(node_id: int) -> str:
    return "nothing" if node_id == ABSENT else f"SN #{node_id}"


def _ids(nodes: list[ShadowNode]) -> set[int]:
    return {node.node_id for node in nodes}


def _listed(marks: list[str]) -> str:
    return f" ({', '.join(marks)})" if marks else ""


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in '"\\{}|<>' else c for c in text)

"""Which variables guard and mock are about: MagPy, Algorithm 1."""

from __future__ import annotations

from collections import deque

from magpy_like.refgraph.ref_graph import ABSENT, EXTERNAL, RefGraph, ShadowNode


def search(graph: RefGraph, source: int, version: int) -> list[ShadowNode]:
    """The nodes reachable from ``source`` over one version (0: the first, -1: the last)."""
    result = [graph.get_node_by_id(source)]
    found = {source}
    queue = deque(result)
    while queue:
        for node_id in queue.popleft().versions[version].refs.values():
            if node_id != ABSENT and node_id not in found:
                found.add(node_id)
                node = graph.get_node_by_id(node_id)
                result.append(node)
                queue.append(node)
    return result


def get_guard_nodes(graph: RefGraph) -> list[ShadowNode]:
    """The variables that the program read from outside."""
    return search(graph, EXTERNAL, 0)


def get_mock_nodes(graph: RefGraph) -> list[ShadowNode]:
    """The variables that the program made and left outside, then those that it changed there."""
    initial = get_guard_nodes(graph)
    there = {node.node_id for node in initial}
    made = [node for node in search(graph, EXTERNAL, -1) if node.node_id not in there]
    changed = [node for node in initial if node.changed]
    return made + changed

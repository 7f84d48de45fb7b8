"""Algorithm 1 of MagPy: the nodes of guard and mock, found from the external node."""

from __future__ import annotations

from collections import deque

from magpy_like.refgraph.ref_graph import ABSENT, EXTERNAL, RefGraph
from magpy_like.refgraph.shadow_node import ShadowNode


def search(graph: RefGraph, source: int, version: int) -> list[ShadowNode]:
    """The nodes reachable from ``source`` over the edges of one version (0: first, -1: last)."""
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
    """GetGuardNodes: the external variables that the program read."""
    return search(graph, EXTERNAL, 0)


def get_mock_nodes(graph: RefGraph) -> list[ShadowNode]:
    """GetMockNodes: new variables that external ones refer to, then changed external variables."""
    initial = get_guard_nodes(graph)
    external = {node.node_id for node in initial}
    new = [node for node in search(graph, EXTERNAL, -1) if node.node_id not in external]
    changed = [node for node in initial if node.changed]
    return new + changed

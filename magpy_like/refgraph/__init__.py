"""The reference graph: which variable refers to which, version by version (MagPy, section 4).

- ``shadow_node``: ShadowNode, ShadowVersion, Relation: one variable and its edges
- ``ref_graph``: RefGraph and its update rules
- ``guard_and_mock_nodes``: Algorithm 1, the nodes of guard and mock
- ``plain_values``: values without identity, and queries of objects that call no code of theirs
- ``rendering``: a RefGraph as text, and for Graphviz
"""

from magpy_like.refgraph.guard_and_mock_nodes import get_guard_nodes, get_mock_nodes
from magpy_like.refgraph.ref_graph import ABSENT, EXTERNAL, RefGraph
from magpy_like.refgraph.shadow_node import (
    MRO,
    REFERENT,
    ByIdentity,
    Fact,
    Relation,
    ShadowNode,
    is_of_contents,
)

__all__ = [
    "ABSENT",
    "EXTERNAL",
    "MRO",
    "REFERENT",
    "ByIdentity",
    "Fact",
    "RefGraph",
    "Relation",
    "ShadowNode",
    "get_guard_nodes",
    "get_mock_nodes",
    "is_of_contents",
]

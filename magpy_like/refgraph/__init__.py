"""The reference graph: which variable refers to which, version by version (MagPy, section 4)."""

from magpy_like.refgraph.node_search import get_guard_nodes, get_mock_nodes
from magpy_like.refgraph.ref_graph import (
    ABSENT,
    EXTERNAL,
    MRO,
    REFERENT,
    ByIdentity,
    Fact,
    RefGraph,
    Relation,
    ShadowNode,
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
]

"""The reference graph: which variable refers to which, version by version (MagPy, section 4)."""

from magpy_like.refgraph.graph import (
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
from magpy_like.refgraph.search import get_guard_nodes, get_mock_nodes

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

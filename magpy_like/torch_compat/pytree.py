"""Nested containers as lists of leaves (``torch.utils._pytree``)."""

from __future__ import annotations

from torch.utils._pytree import (
    tree_flatten,
    tree_is_leaf,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "tree_flatten",
    "tree_is_leaf",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]

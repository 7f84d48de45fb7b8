"""Wrapped functions: targets that call another function, which ``torch.fx`` cannot name."""

from __future__ import annotations

from typing import Any

from torch import fx

REPLAYED = "replayed"
"""The attribute of a target that names the operation it runs."""


def operation_of(node: fx.Node) -> Any:
    """The function that a ``call_function`` node calls in the end."""
    return getattr(node.target, REPLAYED, node.target)

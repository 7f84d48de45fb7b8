"""Symbolic sizes of the tensors that iterations carry and branches leave."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import TWIN
from magpy_like.monitor.context import Context
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import LoopNotMergeable


def twin_of(node: Any) -> torch.Tensor | None:
    """The symbolic twin of a node of the graph; None for a plain value."""
    return node.meta.get(TWIN) if is_instance(node, fx.Node) else None


def check_twins(context: Context, left: torch.Tensor, right: torch.Tensor) -> None:
    """Guard that two symbolic tensors have equal sizes and strides.

    Raises:
        Split: they differ in this call.
    """
    for one, other in zip(
        (*left.shape, *left.stride()), (*right.shape, *right.stride()), strict=True
    ):
        if not context.lifted.guards.require_symbolic(one == other):
            raise LoopNotMergeable("the sizes of a tensor differ between branches or iterations")

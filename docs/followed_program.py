"""The program that docs/architecture.md follows from the first call to its kernels."""

from typing import Any

import torch


def gated(x: torch.Tensor, weight: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    """Gates ``x``, counts the calls and keeps the last mean: a graph and two side effects."""
    state["calls"] += 1
    gate = torch.sigmoid(x * weight)
    state["mean"] = gate.mean(-1)
    return gate * x

"""Locations in a frame at which an operator's results are published."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from magpy_like.monitor.symbolic.expressions import Expression
from magpy_like.splitting.frame_state import FrameState


@dataclass(frozen=True)
class FrameLocation:
    """A local variable, an operand or the returned value, or an item of nested tuples in it."""

    is_local: bool
    slot: int
    """Locals count from 0, operands from the bottom of the stack."""
    path: tuple[int, ...] = ()
    """Positions in nested tuples."""


@dataclass
class OperatorOutput:
    """A tensor or number that an operator computes."""

    location: FrameLocation
    values: tuple[Any, ...]
    """Its value on each path; the true branch first."""
    sources: list[torch.Tensor] = field(default_factory=list)
    """Tensors created before the operator, any of which the result may be."""
    number: Expression | None = None
    """The expression of a number that is known before the graph runs: no operator computes it."""


def value_at(state: FrameState, location: FrameLocation) -> Any:
    """The local or operand there; ``path`` is ignored."""
    return (state.locals if location.is_local else state.stack)[location.slot]


def with_value(state: FrameState, location: FrameLocation, value: Any) -> FrameState:
    """The state with another local or operand there; ``path`` is ignored."""
    slots = list(state.locals if location.is_local else state.stack)
    slots[location.slot] = value
    if location.is_local:
        return replace(state, locals=tuple(slots))
    return replace(state, stack=tuple(slots))

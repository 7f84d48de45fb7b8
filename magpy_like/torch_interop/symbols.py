"""Shape environments, the names of their symbols, and values that contain one."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from magpy_like.torch_compat.tracing_context import GuardSource, Source


class ShapeEnvironment(ShapeEnv):
    """A ``ShapeEnv`` that is freed after use.

    Torch caches what an environment has computed in tables that all environments share, and that
    are emptied when one with another version is used. Two environments often have equal versions:
    the tables grow, and keep the tensors and operators of all traces. *Seen* on torch 2.13.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._version_counter = next(_numbers) << 32
        """No other environment ever has it: torch increases it by one at a change."""

    def get_implications(self, e: Any) -> Any:
        return _implications(e)


_numbers = itertools.count(1)


@functools.lru_cache(1 << 12)
def _implications(relation: sympy.Basic) -> Any:
    """What follows from a relation, in any environment. Torch caches it by environment for good."""
    return _compute_implications(None, relation)


_compute_implications: Any = getattr(
    ShapeEnv.get_implications, "__wrapped__", ShapeEnv.get_implications
)


@dataclass(frozen=True)
class SymbolName(Source):
    """The source of a symbol: its name in torch's messages."""

    text: str

    @property
    def _name_template(self) -> str:
        return self.text

    @property
    def guard_source(self) -> GuardSource:
        return GuardSource.LOCAL


def is_symbolic(value: Any) -> bool:
    """True if a tensor has symbolic sizes or strides, or a number is symbolic."""
    numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(number, torch.SymInt | torch.SymFloat) for number in numbers)

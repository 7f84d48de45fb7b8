"""Shape environments, the names of their symbols, and values that contain one."""

from __future__ import annotations

import functools
import itertools
import types
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from magpy_like.torch_compat.tracing.tracing_context import GuardSource, Source
from magpy_like.torch_patches import bound_tables


class ShapeEnvironment(ShapeEnv):
    """A ``ShapeEnv`` that is freed after use.

    Torch caches what an environment has computed in tables that all environments share. Some are
    emptied when an environment with another version is used. Two environments often have equal
    versions: these tables grow. Others keep their last entries, or all. Both kinds hold the tensors
    and operators of their traces. *Seen* on torch 2.13.
    """

    def __init__(self, **settings: Any) -> None:
        bound_tables()
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
_CACHED: type = type(_implications)


class _OwnCache:
    """A cached method of ``ShapeEnv`` whose results each environment keeps for itself."""

    def __init__(self, name: str, shared: Any) -> None:
        self._name, self._function = name, shared.__wrapped__
        self._size = shared.cache_parameters()["maxsize"]

    def __get__(self, environment: ShapeEnv | None, owner: type) -> Any:
        """The cached method; later calls find it as an attribute of the environment."""
        if environment is None:
            return self
        method = types.MethodType(self._function, environment)
        cached = vars(environment)[self._name] = functools.lru_cache(self._size)(method)
        return cached


for _name, _method in vars(ShapeEnv).items():
    if isinstance(_method, _CACHED) and _name not in vars(ShapeEnvironment):
        setattr(ShapeEnvironment, _name, _OwnCache(_name, _method))


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

"""Symbols of torch's shape environment: their names, and values that contain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from magpy_like.torch_compat.tracing_context import GuardSource, Source


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

"""Inductor's options and modes, for messages and for ``backend="inductor"``."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["mode_names", "mode_options", "option_names"]


@functools.cache
def option_names() -> frozenset[str]:
    """The options of Inductor. Imports its configuration, which torch loads on first use."""
    return frozenset(torch._inductor.list_options())


@functools.cache
def mode_names() -> tuple[str, ...]:
    """The modes of Inductor."""
    return tuple(torch._inductor.list_mode_options())


def mode_options(mode: str) -> dict[str, Any]:
    """The options that a mode of Inductor selects."""
    options: dict[str, Any] = torch._inductor.list_mode_options(mode)
    return options

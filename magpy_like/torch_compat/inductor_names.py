"""Names of Inductor's options and modes, for messages and for ``backend="inductor"``."""

from __future__ import annotations

import functools

import torch

__all__ = ["mode_names", "option_names"]


@functools.cache
def option_names() -> frozenset[str]:
    """The options of Inductor. Imports its configuration, which torch loads on first use."""
    return frozenset(torch._inductor.list_options())


@functools.cache
def mode_names() -> tuple[str, ...]:
    """The modes of Inductor."""
    return tuple(torch._inductor.list_mode_options())

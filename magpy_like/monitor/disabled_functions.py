"""Functions that a program never follows: those marked by ``magpy_like.disable``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magpy_like.refgraph.plain_values import MonitorWeakRef

_disabled: set[MonitorWeakRef] = set()


def mark_disabled(function: Callable[..., Any]) -> None:
    """Make every call of a function a split."""
    _disabled.add(MonitorWeakRef(function, _disabled.discard))


def is_disabled(function: Callable[..., Any]) -> bool:
    """True if ``mark_disabled`` has marked the function."""
    return MonitorWeakRef(function) in _disabled

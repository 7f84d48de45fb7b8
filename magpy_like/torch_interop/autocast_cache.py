"""The casts of weights that autocast keeps until its outermost context ends.

Operators that run on tensors without data must leave no casts: the program would use them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def without_autocast_cache() -> Iterator[None]:
    """Keep autocast in this thread from keeping casts, and from using kept ones."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)

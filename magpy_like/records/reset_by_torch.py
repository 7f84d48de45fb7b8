"""``torch.compiler.reset()`` discards the records of every compiled function.

Torch calls the method ``reset`` of each backend that it knows, and forgets the backends. So one is
made known again with each new record. Dynamo is not imported for it.
"""

from __future__ import annotations

from collections.abc import Callable

from magpy_like.torch_compat.frame_evaluation import known_backends


class _Backend:
    """A backend only in that torch resets it."""

    def __init__(self, reset: Callable[[], None]) -> None:
        self.reset = reset


_backends: dict[Callable[[], None], _Backend] = {}


def call_on_reset(reset: Callable[[], None]) -> None:
    """Have torch call ``reset`` the next time that it resets its compiler."""
    if (known := known_backends()) is not None:
        backend = _backends.setdefault(reset, _Backend(reset))
        known.setdefault(id(backend), backend)

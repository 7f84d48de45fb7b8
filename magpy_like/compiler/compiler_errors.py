"""Errors of the compiler, and its warning about fallbacks to ATen."""

from __future__ import annotations

import contextlib
import contextvars
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from magpy_like.errors import CompileError, MagpyWarning

__all__ = ["CompileError", "MagpyWarning", "Unsupported", "warn_fallback"]


class Unsupported(Exception):
    """The compiler does not support ``subject`` (an operator, a layout), for ``reason``.

    Internal: it becomes an ATen fallback with one warning, or CompileError under ``strict``.
    """

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"{subject}: {reason}")
        self.subject = subject
        self.reason = reason


class Fallback(NamedTuple):
    """A graph, or an operator in it, that runs through ATen, and the line it is from."""

    subject: str
    reason: str
    line: str | None
    """``file:line`` in the program, if it is known."""

    def __str__(self) -> str:
        return f"{self.subject} runs through ATen: {self.reason}"


_collected: contextvars.ContextVar[list[Fallback] | None]
_collected = contextvars.ContextVar("_collected", default=None)
_warned: set[str] = set()


@contextlib.contextmanager
def collecting_fallbacks() -> Iterator[list[Fallback]]:
    """Collect the fallbacks of this context instead of warning of them."""
    found: list[Fallback] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def warn_fallback(subject: str, reason: str, *, strict: bool, line: str | None = None) -> None:
    """Warn once per (subject, reason) that ``subject`` runs through ATen, or collect that.

    Raises:
        CompileError: instead of the warning, if ``strict``.
    """
    fallback = Fallback(subject, reason, line)
    message = f"magpy compiler: {fallback}" + (f" ({line})" if line else "")
    if strict:
        raise CompileError(message)
    if (collected := _collected.get()) is not None:
        collected.append(fallback)
        return
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, MagpyWarning, stacklevel=2)

"""Errors of the compiler, and its warning about fallbacks to ATen."""

from __future__ import annotations

import warnings

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


_warned: set[str] = set()


def warn_fallback(subject: str, reason: str, *, strict: bool) -> None:
    """Warn once per (subject, reason) that ``subject`` runs through ATen.

    Raises:
        CompileError: instead of the warning, if ``strict``.
    """
    message = f"magpy compiler: {subject} runs through ATen: {reason}"
    if strict:
        raise CompileError(message)
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, MagpyWarning, stacklevel=2)

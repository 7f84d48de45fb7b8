"""Errors and the one warning of the compiler."""

from __future__ import annotations

import warnings

from magpy_like.errors import CompileError

__all__ = ["CompileError", "MagpyWarning", "Unsupported", "warn_fallback"]


class MagpyWarning(UserWarning):
    """Something runs through ATen that the compiler was asked to compile."""


class Unsupported(Exception):
    """The compiler cannot take ``what`` (an operator, a layout), for ``reason``. Internal: it
    becomes an ATen fallback with one warning, or CompileError under ``strict``."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


_warned: set[str] = set()


def warn_fallback(what: str, reason: str, *, strict: bool) -> None:
    """Say once per (what, reason) that ``what`` runs through ATen; under ``strict``, raise.

    Raises CompileError when ``strict``.
    """
    message = f"magpy compiler: {what} runs through ATen: {reason}"
    if strict:
        raise CompileError(message)
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, MagpyWarning, stacklevel=2)

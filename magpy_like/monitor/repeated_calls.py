"""Calls that a mock makes again for what they do outside, such as those of a logger."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magpy_like.monitor.recording import Recording

_PACKAGE = str(Path(__file__).parents[1])

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def repeatable(
    rec: Recording, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """The call that does from a mock what this one does from the program.

    A warning says where it comes from and is shown once for each such place: the mock names the
    place in the program.
    """
    if operation is not warnings.warn:
        return operation, args, kwargs
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    message = given["message"]
    category = type(message) if isinstance(message, Warning) else given.get("category")
    frame = _program_frame(given.get("stacklevel", 1))
    if frame is None:
        return operation, args, kwargs
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    rec.constant(registry)
    place = (frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<string>"))
    return warnings.warn_explicit, (message, category or UserWarning, *place, registry), {}


def _program_frame(level: int) -> types.FrameType | None:
    """The frame of the program ``level`` calls out, from inside a callback of the monitor."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    for _ in range(level - 1):
        frame = frame.f_back if frame is not None else None
    return frame

"""Calls with external effects that a mock repeats: warnings and log records."""

from __future__ import annotations

import logging
import sys
import types
import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from magpy_like.monitor.recording import Recording
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

_PACKAGE = str(Path(__file__).parents[2])

_WARNING_FUNCTIONS = {warnings.warn, warnings.warn_explicit}
_LOGGING = logging.Logger._log.__code__.co_filename
SHOWN_ARGUMENTS = {logging.Logger._log: (2, 3), warnings.warn: (0,), warnings.warn_explicit: (0,)}
"""Positions of the arguments that are only shown, and may contain lifted numbers."""
_STACKLEVEL_POSITIONS: dict[Any, int] = {warnings.warn: 2, logging.Logger._log: 7}
"""Calls that report the position of a caller, and the argument that selects the caller."""
_FILTERS_MUTATED = warnings._filters_mutated  # type: ignore[attr-defined]
"""The function that `warnings` calls when its filters have changed."""
_IMMUTABLE_TYPES = (type, Enum, torch.Size, torch.dtype, torch.device)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def repeatable_call(
    rec: Recording, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """The call by which a mock repeats a call of the program.

    A warning reports its source position and is shown once per position: the call of the mock
    passes the position in the program.

    Raises:
        Split: the mock would show the warning under other filters, raise it, or show another
            text.
    """
    repeated = {call[0] for call in rec.effects.calls}
    if operation is _FILTERS_MUTATED and repeated & _WARNING_FUNCTIONS:
        raise Split(
            SplitReason.WARNING_OR_LOG, "changes the warning filters after it has shown a warning"
        )
    if operation in _WARNING_FUNCTIONS and _FILTERS_MUTATED in repeated:
        raise Split(
            SplitReason.WARNING_OR_LOG, "shows a warning after it has changed the warning filters"
        )
    if operation is logging.Logger._log:
        return _repeatable_log(*args, **kwargs)
    if operation is not warnings.warn:
        return operation, args, kwargs
    arguments = (
        dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    )
    message = _frozen_copy(arguments["message"])
    category = type(message) if is_instance(message, Warning) else arguments.get("category")
    if _may_raise(category or UserWarning):
        raise Split(
            SplitReason.WARNING_OR_LOG, "shows a warning that a filter may turn into an exception"
        )
    rec.state.queries.append((_may_raise, (category or UserWarning,), {}, False))
    frame = _program_frame(int(arguments.get("stacklevel", 1)))
    if frame is None:
        return operation, args, kwargs
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    rec.variables.constant(registry)
    position = (frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<string>"))
    return warnings.warn_explicit, (message, category or UserWarning, *position, registry), {}


def reports_caller(
    operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """True if a call reports the position of an outer caller, not of the calling frame.

    Frames of this package may lie between them.
    """
    position = _STACKLEVEL_POSITIONS.get(operation)
    if position is None:
        return False
    return (args[position] if len(args) > position else kwargs.get("stacklevel", 1)) != 1


def fixed_call(call: Call) -> Callable[..., Any]:
    """A function that makes this call and ignores its own arguments."""
    operation, args, kwargs = call
    return lambda *_, **__: operation(*args, **kwargs)


def _may_raise(category: type[Warning]) -> bool:
    """True if a filter may turn a warning of this category into an exception."""
    filters: list[Any] = [*warnings.filters]
    return any(action == "error" and issubclass(category, of) for action, _, of, *_ in filters)


def _repeatable_log(
    logger: logging.Logger,
    level: int,
    text: object,
    args: Any,
    exc_info: Any = None,
    extra: Any = None,
    stack_info: bool = False,
    stacklevel: int = 1,
) -> Call:
    """The repeatable call for ``Logger._log``, with the source position in the program.

    Raises:
        Split: it logs a handled exception or the stack, or may log another text.
    """
    if exc_info or stack_info:
        raise Split(SplitReason.WARNING_OR_LOG, "logs an exception or the stack")
    frame = _program_frame(stacklevel, _LOGGING)
    position = ("(unknown file)", 0, "(unknown function)")
    if frame is not None:
        position = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    return _log, (logger, level, position, *map(_frozen_copy, (text, args, extra))), {}


def _frozen_copy(shown: Any) -> Any:
    """A copy of the shown value that the program cannot change before the mock shows it.

    Raises:
        Split: an object in it may change.
    """
    if type(shown) in (list, tuple):
        return type(shown)(_frozen_copy(item) for item in shown)
    if type(shown) is dict:
        return {_frozen_copy(key): _frozen_copy(value) for key, value in shown.items()}
    arguments = shown.args if is_instance(shown, BaseException) else (shown,)
    if not all(is_plain(value) or is_instance(value, _IMMUTABLE_TYPES) for value in arguments):
        raise Split(
            SplitReason.WARNING_OR_LOG,
            f"shows or logs a {type(shown).__qualname__}, which may change later",
        )
    return shown


def _log(
    logger: logging.Logger,
    level: int,
    position: tuple[str, int, str],
    text: Any,
    args: Any,
    extra: Any,
) -> None:
    file, line, function = position
    logger.handle(
        logger.makeRecord(logger.name, level, file, line, text, args, None, function, extra)
    )


def _program_frame(level: int, library: str = "") -> types.FrameType | None:
    """The frame of the program, ``level`` calls out, from inside a callback of the monitor.

    Frames of this package and the innermost frames of ``library`` do not count.
    """
    frame = innermost_program_frame(sys._getframe(1))
    while frame is not None and frame.f_code.co_filename == library:
        frame = innermost_program_frame(frame.f_back)
    for _ in range(level - 1):
        frame = innermost_program_frame(frame.f_back) if frame is not None else None
    return frame


def innermost_program_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The first frame outside this package, from ``frame`` outwards."""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame

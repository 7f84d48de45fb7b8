"""Calls that a mock makes again for what they do outside, such as those of a logger."""

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

_SHOWS = {warnings.warn, warnings.warn_explicit}
_LOGGING = logging.Logger._log.__code__.co_filename
SHOWN_ARGUMENTS = {logging.Logger._log: (2, 3), warnings.warn: (0,), warnings.warn_explicit: (0,)}
"""Positions of the arguments that are shown as they are: they may be made of lifted numbers."""
_STACKLEVEL: dict[Any, int] = {warnings.warn: 2, logging.Logger._log: 7}
"""Calls that can name a caller's place, and which argument says which one's."""
_RULES_CHANGED = warnings._filters_mutated  # type: ignore[attr-defined]
"""What `warnings` calls whenever its filters have changed."""
_UNCHANGING = (type, Enum, torch.Size, torch.dtype, torch.device)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def repeatable_call(
    rec: Recording, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """The call that does from a mock what this one does from the program.

    A warning says where it comes from and is shown once for each such place: the mock names the
    place in the program.

    Raises:
        Split: it would be shown by other rules than those that the program has set for it, or
            raised; or it shows what may be another text by then.
    """
    repeated = {call[0] for call in rec.calls}
    if operation is _RULES_CHANGED and repeated & _SHOWS:
        raise Split(
            SplitReason.WARNING_OR_LOG, "changes the warning filters after it has shown a warning"
        )
    if operation in _SHOWS and _RULES_CHANGED in repeated:
        raise Split(
            SplitReason.WARNING_OR_LOG, "shows a warning after it has changed the warning filters"
        )
    if operation is logging.Logger._log:
        return _log_from(*args, **kwargs)
    if operation is not warnings.warn:
        return operation, args, kwargs
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    message = _as_it_is(given["message"])
    category = type(message) if is_instance(message, Warning) else given.get("category")
    if _may_raise(category or UserWarning):
        raise Split(
            SplitReason.WARNING_OR_LOG, "shows a warning that a filter may turn into an exception"
        )
    rec.state_reads.append((_may_raise, (category or UserWarning,), {}, False))
    frame = _program_frame(int(given.get("stacklevel", 1)))
    if frame is None:
        return operation, args, kwargs
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    rec.constant(registry)
    place = (frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<string>"))
    return warnings.warn_explicit, (message, category or UserWarning, *place, registry), {}


def reports_caller(
    operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether a call tells where a caller stands: frames of this package lie between."""
    at = _STACKLEVEL.get(operation)
    return at is not None and (args[at] if len(args) > at else kwargs.get("stacklevel", 1)) != 1


def fixed_call(call: Call) -> Callable[..., Any]:
    """What makes this call, whatever it is given itself."""
    operation, args, kwargs = call
    return lambda *_, **__: operation(*args, **kwargs)


def _may_raise(category: type[Warning]) -> bool:
    """Whether a warning of this category may be raised as an exception instead of being shown."""
    filters: list[Any] = [*warnings.filters]
    return any(action == "error" and issubclass(category, of) for action, _, of, *_ in filters)


def _log_from(
    logger: logging.Logger,
    level: int,
    text: object,
    args: Any,
    exc_info: Any = None,
    extra: Any = None,
    stack_info: bool = False,
    stacklevel: int = 1,
) -> Call:
    """A log record names the place in the program, too.

    Raises:
        Split: it shows a handled exception, the stack, or what may be another text by then.
    """
    if exc_info or stack_info:
        raise Split(SplitReason.WARNING_OR_LOG, "logs an exception or the stack")
    frame = _program_frame(stacklevel, _LOGGING)
    place = ("(unknown file)", 0, "(unknown function)")
    if frame is not None:
        place = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    return _log, (logger, level, place, *map(_as_it_is, (text, args, extra))), {}


def _as_it_is(shown: Any) -> Any:
    """What is shown, without any container that the program may change before the mock shows it.

    Raises:
        Split: it may change otherwise.
    """
    if type(shown) in (list, tuple):
        return type(shown)(_as_it_is(item) for item in shown)
    if type(shown) is dict:
        return {_as_it_is(key): _as_it_is(value) for key, value in shown.items()}
    told = shown.args if is_instance(shown, BaseException) else (shown,)
    if not all(is_plain(value) or is_instance(value, _UNCHANGING) for value in told):
        raise Split(
            SplitReason.WARNING_OR_LOG,
            f"shows or logs a {type(shown).__qualname__}, which may change later",
        )
    return shown


def _log(
    logger: logging.Logger,
    level: int,
    place: tuple[str, int, str],
    text: Any,
    args: Any,
    extra: Any,
) -> None:
    file, line, function = place
    logger.handle(
        logger.makeRecord(logger.name, level, file, line, text, args, None, function, extra)
    )


def _program_frame(level: int, library: str = "") -> types.FrameType | None:
    """The frame of the program ``level`` calls out, from inside a callback of the monitor.

    Frames of this package, and those of ``library`` that come first, are none of the program.
    """
    frame = innermost_program_frame(sys._getframe(1))
    while frame is not None and frame.f_code.co_filename == library:
        frame = innermost_program_frame(frame.f_back)
    for _ in range(level - 1):
        frame = innermost_program_frame(frame.f_back) if frame is not None else None
    return frame


def innermost_program_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame that is none of this package, from ``frame`` out."""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame

"""Imports inside functions.

A module is looked up where it has been since its first import; that one runs before anything is
recorded of it, as it happens once in a process.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.calls import read_calls
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects import attributes
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def import_module(context: Context, step: Step) -> Token:
    """An import inside a function: a read of ``sys.modules``, which has a module from its first
    import on. The first import runs code that is no part of the program."""
    level = step.stack[-2]
    name = step.name
    if level:
        package = step.frame.f_globals.get("__package__") or ""
        parts = package.rsplit(".", level - 1)
        name = f"{parts[0]}.{name}" if name else parts[0]
    if name not in sys.modules:
        _import_first(context, name)
    _look_up_module(context, name)
    return context.suspension.until(_finish_import, None)


def _look_up_module(context: Context, name: str) -> None:
    """Record the reads of ``sys.modules``: a module and its packages may have been replaced."""
    context.recording.variables.constant(sys.modules)
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        read_calls.read_item(context.recording, sys.modules, ".".join(parts[:i]))


def _import_first(context: Context, name: str) -> None:
    try:
        with context.suspension:
            importlib.import_module(name)
    except Exception as error:
        raise Split(
            SplitReason.FAILED_IMPORT,
            f"imports {name}, which fails: {type(error).__name__}: {error}",
        ) from None
    finally:
        context.account()


def _finish_import(context: Context, _: None, result: Any) -> None:
    context.recording.variables.constant(result)


def import_name(context: Context, step: Step) -> Token:
    """``from module import name``."""
    module = step.stack[-1]
    attributes.read_attribute(context.recording, module, step.name)
    return None

"""``raise`` statements, and ``except`` clauses, which match the class of an exception."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.exc_info import rely_on_none_outside
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording


def raise_exception(context: Context, step: Step) -> Token:
    """``raise``: without an operand it raises the handled exception again.

    Python sets the context of an exception, which stays in one that the program has not created.
    """
    rec, count = context.recording, step.oparg
    is_external = count and rec.variables.node(step.stack[-count]) is not None
    if is_external or (not count and sys.exception() is rec.state.handled_outside):
        rely_on_none_outside(rec)
    return None


def match_exception(context: Context, step: Step) -> Token:
    """``except Class`` and ``except* Class``."""
    _read_bases(context.recording, step.stack[-2])
    return None


def _read_bases(rec: Recording, exception: Any) -> None:
    """Record the bases of the class of an exception, and of those in a group."""
    class_lookup.read_mro(rec, type(exception))
    if is_instance(exception, BaseExceptionGroup):
        for part in BaseExceptionGroup.exceptions.__get__(exception):
            _read_bases(rec, part)

"""Tracebacks without the local variables of their frames.

A handler writes files, lines and names to a log. A mock that re-raises an exception provides them
by frames that never run and have no local variables.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

Entry = tuple[CodeType, dict[str, Any], int, int]
"""Code, its globals, offset in bytes, line."""


def traceback_entries(
    traceback: TracebackType | None, until: TracebackType | None
) -> tuple[Entry, ...]:
    """The frames of a traceback, outermost first, down to the traceback ``until``."""
    found = []
    while traceback is not None and traceback is not until:
        frame = traceback.tb_frame
        found.append((frame.f_code, frame.f_globals, traceback.tb_lasti, traceback.tb_lineno))
        traceback = traceback.tb_next
    return tuple(found)


def prepend_frames(exception: BaseException, passed: tuple[Entry, ...]) -> None:
    """Prepend frames, outermost first, to an exception's traceback."""
    traceback = exception.__traceback__
    for code, names, offset, line in reversed(passed):
        traceback = TracebackType(traceback, _frame(code, names), offset, line)
    exception.__traceback__ = traceback


def set_context_from_caller(exception: BaseException) -> None:
    """Set the context of an exception without one to that which the program's caller handles."""
    outside = sys.exception()
    if exception.__context__ is None and exception is not outside:
        exception.__context__ = outside


def _frame(code: CodeType, names: dict[str, Any]) -> FrameType:
    """A frame with a function's code and globals: that of a generator that is never started."""
    frame: FrameType = FunctionType(_never_run(code, id(code)), names)().gi_frame
    return frame


@functools.lru_cache(256)
def _never_run(code: CodeType, identity: int) -> CodeType:
    """Code with the source positions of another. ``identity`` is its id: code objects of different
    files may compare equal."""
    length = len(code.co_code)
    raw = _GENERATOR + bytes((dis.opmap["NOP"], 0)) * max(0, (length - len(_GENERATOR)) // 2)
    return code.replace(
        co_code=raw,
        co_flags=inspect.CO_GENERATOR | inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS,
        co_argcount=0,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_varnames=(),
        co_nlocals=0,
        co_cellvars=(),
        co_freevars=(),
        co_exceptiontable=b"",
    )


_GENERATOR = bytes((dis.opmap["RETURN_GENERATOR"], 0, dis.opmap["POP_TOP"], 0))

"""The program's present line, as a stack trace for the nodes of the operator graph."""

from __future__ import annotations

import bisect
import operator
import os
import types
from typing import TYPE_CHECKING

import torch

from magpy_like.native import OWN_FOLDER

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

_LIBRARIES = (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, OWN_FOLDER)


class SourceLines:
    """Called for the line of the innermost frame outside torch; torch's own if there is none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lines: dict[types.CodeType, list[tuple[int, int, int | None]]] = {}
        """Ranges of offsets, and their lines."""

    def __call__(self) -> str:
        """The line in the format of a traceback; "" outside the program, or if it has no lines."""
        innermost, outermost = self._context.frame, self._context.root_frame
        frame = innermost
        while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
            frame = None if frame is outermost else frame.f_back
        frame = frame or innermost
        line = None if frame is None else self._line(frame)
        if frame is None or line is None:
            return ""
        return f'File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}'

    def _line(self, frame: types.FrameType) -> int | None:
        owner, offset = self._context.instruction
        if owner != id(frame):  # it is calling another one
            return frame.f_lineno
        # The result of an operator is reported when its frame is at the next instruction.
        lines = self._lines.get(frame.f_code)
        if lines is None:
            lines = self._lines[frame.f_code] = [*frame.f_code.co_lines()]
        return lines[bisect.bisect(lines, offset, key=_start) - 1][2] if lines else None


_start = operator.itemgetter(0)

"""A program gets its own tensors back where a recording ends, see ``dynamic.stand_ins``: at once,
and once more when each of the open frames goes on, with what native code has held meanwhile.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

from magpy_like.monitor.protocols import Branching
from magpy_like.native import Monitor


class TensorRestoration:
    """Who may still have tensors that are not the program's own, in one monitor run."""

    def __init__(self, monitor: Monitor, branching: Branching | None, caller: int) -> None:
        """``caller`` is the id of the frame that calls the program."""
        self._monitor, self._branching, self._caller = monitor, branching, caller
        self._waited_for: set[int] = set()
        """Ids of open frames that have yet to go on."""
        self.over = False
        """Whether these are all that the run waits for."""

    def restore(self, frame: types.FrameType | None, changed: Sequence[Any]) -> None:
        """A recording ends, which has ``changed`` these objects. ``frame`` stands before an
        instruction."""
        if self._branching is None or not self._branching.has_substitutes():
            return
        self._waited_for.clear()
        outer = sys._getframe(1) if frame is None else frame.f_back
        while outer is not None and id(outer) != self._caller:
            if outer.f_trace_opcodes:  # others are not followed
                self._waited_for.add(id(outer))
                self._branching.restore_locals(outer)
            outer = outer.f_back
        self._branching.restore_originals(frame, changed)
        self._look_whether_done()

    def end(self, frame: types.FrameType | None, everything: bytes) -> None:
        """The run waits for nothing else: ``everything`` is a filter that lets all events pass."""
        if not self._waited_for:
            self._monitor.stop()
        elif not self.over:
            self.over = True
            self._monitor.drop_pending()
            self._monitor.set_filter(everything)
            if frame is not None:
                frame.f_trace_opcodes = False

    def resumes(self, frame: types.FrameType) -> bool:
        """Before a frame's next instruction: whether it was waited for, and has changed now."""
        if id(frame) not in self._waited_for or self._branching is None:
            return False
        self._waited_for.discard(id(frame))
        self._branching.restore_originals(frame)
        if self.over:
            frame.f_trace_opcodes = False
        self._look_whether_done()
        return True

    def entered(self, frame: types.FrameType) -> None:
        """Native code that is waited for may have called it with what it holds."""
        if self._waited_for and self._branching is not None:
            self._branching.restore_locals(frame)

    def left(self, frame: types.FrameType) -> None:
        if id(frame) in self._waited_for:
            self._waited_for.discard(id(frame))
            self._look_whether_done()

    def _look_whether_done(self) -> None:
        if not self._waited_for and self._branching is not None:
            self._branching.release_restored()
            if self.over:
                self._monitor.stop()

"""Restoring the program's own tensors where a recording ends; see `substitute_tensors`.

They are restored at once, and again when each active frame resumes: native code may have held
substitutes meanwhile.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

from magpy_like.monitor.protocols import Branching
from magpy_like.native import Monitor


class TensorRestoration:
    """The frames of a monitor run that may still hold substitute tensors."""

    def __init__(self, monitor: Monitor, branching: Branching | None, caller: int) -> None:
        """``caller`` is the id of the frame that calls the program."""
        self._monitor, self._branching, self._caller = monitor, branching, caller
        self._waited_for: set[int] = set()
        """Ids of active frames that have not resumed yet."""
        self.over = False
        """Whether the recording has ended and monitoring continues for these frames only."""

    def restore(self, frame: types.FrameType | None, changed: Sequence[Any]) -> None:
        """Restore the tensors at the end of a recording that has ``changed`` these objects.

        ``frame`` is about to execute an instruction.
        """
        if self._branching is None or not self._branching.has_substitutes():
            return
        self._waited_for.clear()
        outer = sys._getframe(1) if frame is None else frame.f_back
        while outer is not None and id(outer) != self._caller:
            if self._monitor.is_followed(outer):
                self._waited_for.add(id(outer))
                self._branching.restore_locals(outer)
            outer = outer.f_back
        self._branching.restore_originals(frame, changed)
        self._stop_if_done()

    def end(self, frame: types.FrameType | None, everything: bytes) -> None:
        """End the run when all frames have resumed; ``everything`` is a filter that passes all
        events."""
        if not self._waited_for:
            self._monitor.stop()
        elif not self.over:
            self.over = True
            self._monitor.drop_pending()
            self._monitor.set_filter(everything)
            if frame is not None:
                self._monitor.unfollow(frame)

    def resumes(self, frame: types.FrameType) -> bool:
        """Restore the tensors of a frame before its next instruction; True if it was waited for."""
        if id(frame) not in self._waited_for or self._branching is None:
            return False
        self._waited_for.discard(id(frame))
        self._branching.restore_originals(frame)
        if self.over:
            self._monitor.unfollow(frame)
        self._stop_if_done()
        return True

    def entered(self, frame: types.FrameType) -> None:
        """Restore the tensors of a new frame: its native caller may have passed substitutes."""
        if self._waited_for and self._branching is not None:
            self._branching.restore_locals(frame)

    def left(self, frame: types.FrameType) -> None:
        if id(frame) in self._waited_for:
            self._waited_for.discard(id(frame))
            self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._waited_for and self._branching is not None:
            self._branching.release_restored()
            if self.over:
                self._monitor.stop()

"""Restoring the program's own tensors and numbers where a recording ends.

Tensors (see `substitute_tensors`) are restored wherever a recording ends, numbers where the program
continues natively: another recording knows lifted numbers by their objects.

Both are restored at once, and again when each active frame resumes: native code may have held other
objects meanwhile.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

from magpy_like.monitor.objects.object_replacement import (
    OriginalNumbers,
    restore_locals,
    restore_operands,
)
from magpy_like.monitor.protocols import Branching
from magpy_like.native import Monitor, frame_locals


class Restoration:
    """The frames of a monitor run that may still hold substitute tensors or lifted numbers."""

    def __init__(
        self,
        monitor: Monitor,
        branching: Branching | None,
        originals: OriginalNumbers,
        caller: int,
    ) -> None:
        """``caller`` is the id of the frame that calls the program."""
        self._monitor, self._branching, self._caller = monitor, branching, caller
        self._originals = originals
        self._restores_numbers = False
        """Whether the program continues natively and may hold lifted numbers."""
        self._waited_for: set[int] = set()
        """Ids of active frames that have not resumed yet."""
        self.over = False
        """Whether the recording has ended and monitoring continues for these frames only."""

    def restore_tensors(self, frame: types.FrameType | None, changed: Sequence[Any]) -> None:
        """Restore the tensors at the end of a recording that has ``changed`` these objects.

        ``frame`` is about to execute an instruction.
        """
        if self._branching is None or not self._branching.has_substitutes():
            return
        self._waited_for.clear()
        self._wait_for(self._outer_frames(frame))
        self._branching.restore_originals(frame, changed)
        self._stop_if_done()

    def restore_numbers(self, frame: types.FrameType | None, changed: Sequence[Any]) -> None:
        """Restore the lifted numbers, as the program continues natively; arguments as above."""
        self._restores_numbers = self._originals.any()
        if not self._restores_numbers:
            return
        outer = self._outer_frames(frame)
        self._wait_for(outer)
        reached = _locals_of(outer if frame is None else [frame, *outer])
        self._originals.restore_in_objects((*changed, *reached))
        self._restore_numbers_of(frame)
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
        """Restore the objects of a frame before its next instruction; True if it was waited for."""
        if id(frame) not in self._waited_for:
            return False
        self._waited_for.discard(id(frame))
        if self._branching is not None:
            self._branching.restore_originals(frame)
        self._restore_numbers_of(frame)
        if self.over:
            self._monitor.unfollow(frame)
        self._stop_if_done()
        return True

    def entered(self, frame: types.FrameType) -> None:
        """Restore the objects of a new frame: its native caller may have passed others."""
        if self._waited_for:
            self._restore_locals(frame)

    def left(self, frame: types.FrameType) -> None:
        if id(frame) in self._waited_for:
            self._waited_for.discard(id(frame))
            self._stop_if_done()

    def restore_reached_numbers(self, frame: types.FrameType, changed: Sequence[Any]) -> None:
        """Restore the lifted numbers in the objects that frames hold, not in the frames: a native
        instruction runs before the next recording begins."""
        if self._originals.any():
            reached = _locals_of([frame, *self._outer_frames(frame)])
            self._originals.restore_in_reached((*changed, *reached))

    def _outer_frames(self, frame: types.FrameType | None) -> list[types.FrameType]:
        """The monitored frames that have called ``frame``, or this function."""
        found, outer = [], sys._getframe(1) if frame is None else frame.f_back
        while outer is not None and id(outer) != self._caller:
            if self._monitor.is_followed(outer):
                found.append(outer)
            outer = outer.f_back
        return found

    def _wait_for(self, frames: Sequence[types.FrameType]) -> None:
        for frame in frames:
            self._waited_for.add(id(frame))
            self._restore_locals(frame)

    def _restore_locals(self, frame: types.FrameType) -> None:
        if self._branching is not None:
            self._branching.restore_locals(frame)
        if self._restores_numbers:
            restore_locals(frame, self._originals.original)

    def _restore_numbers_of(self, frame: types.FrameType | None) -> None:
        if frame is not None and self._restores_numbers:
            restore_locals(frame, self._originals.original)
            restore_operands(frame, self._originals.original)

    def _stop_if_done(self) -> None:
        if not self._waited_for:
            if self._branching is not None:
                self._branching.release_restored()
            if self.over:
                self._monitor.stop()


def _locals_of(frames: Sequence[types.FrameType]) -> list[Any]:
    return [value for frame in frames for value in frame_locals(frame)]

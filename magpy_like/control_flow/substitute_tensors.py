"""Tensors that a monitored program has instead of others, and giving back those others.

The monitor tells values of the graph apart by the tensor objects of the program. A side of a branch
may hand on a tensor that was there before, which would be two values of the graph then: as itself,
and as what the branch gives. So the program gets another tensor with the same memory, for as long
as its recording goes on.

Where a recording ends, at a split or at the end of the run, the program gets its own tensors back
wherever they are: in the frame that stands there, in whatever the garbage collector knows, and in
what the recording has changed, which may be frozen and hidden from the collector. What native
code holds that is still running comes to light when it has returned, as do the operands of the
frames that called it: each of these is looked at once more before it goes on.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

from magpy_like.monitor.object_replacement import replace_all, replaced
from magpy_like.native import frame_locals, frame_set_local, frame_set_operand, frame_stack
from magpy_like.refgraph.plain_values import MonitorWeakRef


class SubstituteTensors:
    """The tensors of one monitor run that stand for others.

    What a stand-in stands for is kept no longer than the stand-in itself: a monitored run is to
    hold no more memory than an eager one.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[MonitorWeakRef, torch.Tensor]] = {}
        """Stand-ins by their ids, in the order of their making, each with what it stands for."""
        self._kept: list[torch.Tensor] = []
        """Those that were given back: native code may look at one that nothing refers to."""
        self._changed: Sequence[Any] = ()
        """What the recording has changed that has ended last."""

    def __bool__(self) -> bool:
        return bool(self._made)

    def make(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            made = tensor.view_as(tensor)
        known, key = self._made, id(made)
        known[key] = MonitorWeakRef(made, lambda _: known.pop(key, None)), tensor
        return made

    def original(self, tensor: Any) -> Any:
        """What the program would have instead of a stand-in; any other value itself."""
        while (known := self._made.get(id(tensor))) is not None and known[0]() is tensor:
            tensor = known[1]
        return tensor

    def restore(self, frame: types.FrameType | None, changed: Sequence[Any]) -> None:
        """Let the program have its own tensors, and a frame that stands before an instruction.

        ``changed`` is what the recording has changed that ends; nothing if it has ended before.
        """
        self._changed = changed or self._changed
        if frame is not None:
            self.restore_locals(frame)
            stack = frame_stack(frame)
            for i, value in enumerate(stack):
                original = self.original(value)
                if original is not value:
                    frame_set_operand(frame, len(stack) - i, original)
            value = None
            del stack
        alive = [made for reference, _ in self._made.values() if (made := reference()) is not None]
        made = None
        known = {id(tensor) for tensor in self._kept}
        self._kept += [tensor for tensor in alive if id(tensor) not in known]
        held = [tensor for tensor in alive if sys.getrefcount(tensor) > _OURS]
        if held:
            originals = {id(tensor): self.original(tensor) for tensor in held}
            ours = {id(alive), id(held), id(self._kept)}
            replace_all(held, originals, ours, self._changed)

    def release(self) -> None:
        """No native code runs any more that may look at what was given back."""
        self._kept.clear()
        self._changed = ()

    def restore_locals(self, frame: types.FrameType) -> None:
        """The same for the local variables of a frame alone."""
        for slot, value in enumerate(frame_locals(frame)[: frame.f_code.co_nlocals]):
            original = self.original(value)
            if original is not value:
                frame_set_local(frame, slot, original)

    def restore_result(self, result: Any, changed: Sequence[Any]) -> Any:
        """``result`` with the tensors that the program has handed on; elsewhere they are put back.

        Call it when nothing of the program runs any more and the recording is released.
        """
        if self._made:
            result = replaced(result, self.original)
            self.restore(None, changed)
        self._made.clear()
        self.release()
        return result


_OURS = 4
"""References to a tensor from `restore`: from two lists, a variable and an argument."""

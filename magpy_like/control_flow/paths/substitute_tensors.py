"""Substitutes: tensors that the program holds in place of others, and their restoration.

The monitor identifies a value of the graph by the program's tensor object. A branch may return a
tensor created before it, which would then be two values of the graph: itself, and the result of the
branch. So the program receives a substitute, another tensor object with the same memory, until its
recording ends.

When a recording ends, at a split or at the end of the run, each substitute is replaced by its
original in the frame, in all objects that the garbage collector tracks, and in the objects that the
recording has changed, which may be frozen and therefore untracked. Running native code, and the
operand stacks of the frames that called it, may hold further references: each of these frames is
restored again before it resumes.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

from magpy_like.monitor.objects.object_replacement import (
    replace_all,
    replaced,
    restore_locals,
    restore_operands,
)
from magpy_like.refgraph.plain_values import MonitorWeakRef


class SubstituteTensors:
    """The substitutes of one monitor run.

    A substitute's original is released together with the substitute: a monitored run must not use
    more memory than an eager one.
    """

    def __init__(self) -> None:
        self._substitutes: dict[int, tuple[MonitorWeakRef, torch.Tensor]] = {}
        """By id and in the order of their creation, substitutes with their originals."""
        self._kept: list[torch.Tensor] = []
        """Restored substitutes: native code may still use one that has no other reference."""
        self._changed: Sequence[Any] = ()
        """The objects changed by the recording that has ended last."""

    def __bool__(self) -> bool:
        return bool(self._substitutes)

    def make(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new substitute: a view of all of ``tensor``, of its class."""
        with torch.enable_grad():
            substitute = tensor.view_as(tensor)
            if type(substitute) is not type(tensor):
                substitute = substitute.as_subclass(type(tensor))
        table, key = self._substitutes, id(substitute)
        table[key] = MonitorWeakRef(substitute, lambda _: table.pop(key, None)), tensor
        return substitute

    def original(self, tensor: Any) -> Any:
        """The tensor that a substitute replaces; any other value itself."""
        while (pair := self._substitutes.get(id(tensor))) is not None and pair[0]() is tensor:
            tensor = pair[1]
        return tensor

    def restore(self, frame: types.FrameType | None, changed: Sequence[Any]) -> None:
        """Replace all substitutes by their originals.

        Args:
            frame: a frame before its next instruction, whose locals and operands are restored.
            changed: the objects changed by the recording that ends; empty if it has ended before.
        """
        self._changed = changed or self._changed
        if frame is not None:
            self.restore_locals(frame)
            restore_operands(frame, self.original)
        alive = [t for reference, _ in self._substitutes.values() if (t := reference()) is not None]
        t = None
        kept = {id(tensor) for tensor in self._kept}
        self._kept += [tensor for tensor in alive if id(tensor) not in kept]
        held = [tensor for tensor in alive if sys.getrefcount(tensor) > _OWN_REFERENCES]
        if held:
            originals = {id(tensor): self.original(tensor) for tensor in held}
            ours = {id(alive), id(held), id(self._kept)}
            replace_all(held, originals, ours, self._changed)

    def release(self) -> None:
        """Release restored substitutes: no native code is running that may use them."""
        self._kept.clear()
        self._changed = ()

    def restore_locals(self, frame: types.FrameType) -> None:
        """Replace the substitutes in the local variables of a frame."""
        restore_locals(frame, self.original)

    def restore_result(self, result: Any, changed: Sequence[Any]) -> Any:
        """The program's result with originals; substitutes elsewhere are replaced in place.

        Call it when the program has ended and its recording is released.
        """
        if self._substitutes:
            result = replaced(result, self.original)
            self.restore(None, changed)
        self._substitutes.clear()
        self.release()
        return result


_OWN_REFERENCES = 4
"""References to a tensor from ``restore``: from two lists, a variable and an argument."""

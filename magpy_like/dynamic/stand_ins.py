"""Tensors that a monitored program has instead of others, and giving back those others.

The monitor tells values of the graph apart by the tensor objects of the program. A side of a branch
may hand on a tensor that was there before, which would be two values of the graph then: as itself,
and as what the branch gives. So the program gets another tensor with the same memory, for as long
as it is monitored.
"""

from __future__ import annotations

import gc
import operator
import sys
import types
import weakref
from collections import deque
from typing import Any

import torch

from magpy_like.native.kinds import isinstance


class StandIns:
    """The tensors of one monitor run that stand for others.

    What a stand-in stands for is kept no longer than the stand-in itself: a monitored run is to
    hold no more memory than an eager one.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        """Stand-ins by their ids, in the order of their making, each with what it stands for."""

    def __bool__(self) -> bool:
        return bool(self._made)

    def make(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            made = tensor.view_as(tensor)
        known, key = self._made, id(made)
        known[key] = weakref.ref(made, lambda _: known.pop(key, None)), tensor
        return made

    def original(self, tensor: Any) -> Any:
        """What the program would have instead of a stand-in; any other value itself."""
        while (known := self._made.get(id(tensor))) is not None and known[0]() is tensor:
            tensor = known[1]
        return tensor

    def give_back(self, result: Any) -> Any:
        """``result`` with the tensors that the program has handed on; elsewhere they are put back.

        Call it when nothing of the program runs any more and the recording is released.
        """
        while self._made:
            _, (reference, tensor) = self._made.popitem()
            made = reference()
            if made is None:
                continue
            tensor = self.original(tensor)  # which may be a stand-in as well
            result = _replaced(result, made, tensor)
            if sys.getrefcount(made) > 2:
                _put_back(made, tensor)
        return result


def _replaced(value: Any, old: Any, new: Any) -> Any:
    """A tree of tuples with another leaf."""
    if value is old:
        return new
    if type(value) is not tuple:
        return value
    parts = []
    for item in value:
        parts.append(_replaced(item, old, new))
    return value if all(map(operator.is_, parts, value)) else tuple(parts)


def _put_back(old: Any, new: Any) -> None:
    """Whatever refers to ``old`` refers to ``new`` instead.

    No function in here may close over ``old``: its cell would be one of the referrers.
    """
    for holder in gc.get_referrers(old):
        if isinstance(holder, dict):
            for key, value in list(dict.items(holder)):
                if value is old:
                    dict.__setitem__(holder, key, new)
        elif isinstance(holder, list | deque):
            for i, value in enumerate(holder):
                if value is old:
                    holder[i] = new
        elif isinstance(holder, set):
            if old in holder:
                holder.discard(old)
                holder.add(new)
        elif isinstance(holder, types.CellType):
            holder.cell_contents = new
        elif type(holder) is tuple:
            _put_back(holder, _replaced(holder, old, new))
        elif not isinstance(holder, types.FrameType):
            _put_into_attributes(holder, old, new)


def _put_into_attributes(holder: Any, old: Any, new: Any) -> None:
    names = [*getattr(holder, "__dict__", ())]
    names += [n for c in type(holder).__mro__ for n in c.__dict__.get("__slots__", ())]
    for name in names:
        try:
            if object.__getattribute__(holder, name) is old:
                object.__setattr__(holder, name, new)
        except (AttributeError, TypeError):
            continue

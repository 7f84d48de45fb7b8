"""Slices of a tensor at a constant distance from a loop's index, as in ``x[:, t : t + 1]``.

A slice has as many elements as there are, so its sizes depend on where it begins. They do not in a
loop of which all slices lie inside the tensor: there it is ``torch.narrow``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from magpy_like.monitor.loops import added_to
from magpy_like.monitor.native_results import NativeCall
from magpy_like.native.kinds import isinstance

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun


@dataclass(frozen=True)
class Window:
    """The elements of a dimension, of which there are ``size``, that a round reads by a slice: from
    so far behind its index, up to, but without, so far."""

    dim: int
    size: Any
    begin: int
    end: int


def narrow(run: MonitorRun, token: Any) -> None:
    """Have what reads a slice of a tensor recorded as one of a constant number of elements, should
    it be such a one; the round is told."""
    side = run.side
    if side is None or side.index is None or token is None:
        return
    call = token[1]
    if not isinstance(call, NativeCall) or not call.on_graph:
        return
    tensor, key = call.args
    parts = key if type(key) is tuple else (key,)
    if any(type(part) is not slice for part in parts):
        return
    found = [i for i, part in enumerate(parts) if part != slice(None)]
    if len(found) != 1 or parts[found[0]].step not in (None, 1):
        return
    (dim,) = found
    ends = parts[dim].start, parts[dim].stop
    if any(type(number) is not int for number in ends):
        return
    begin, end = (_distance(run, side.index, number) for number in ends)
    if begin is None or end is None or not begin < end:
        return
    rec, size = run.recording, tensor.shape[dim]
    twin = rec.twin_of(tensor)
    if rec.operators.has_data_shape(tensor) or (rec.twin is not None and twin is None):
        return
    if ends[0] < 0 or ends[1] > size:
        return
    size = size if twin is None else run.lifted.pair(size, twin.shape[dim])
    side.windows.append(Window(dim, size, begin, end))
    call.operation, call.args = torch.narrow, (tensor, dim, ends[0], end - begin)


def _distance(run: MonitorRun, index: fx.Node, number: int) -> int | None:
    """By how much a number exceeds the index of a round, in any round; None if that varies."""
    operators = run.recording.operators
    return added_to(index, operators.value_node(number, run.recording.graph_value))

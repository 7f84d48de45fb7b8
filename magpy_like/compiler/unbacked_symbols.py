"""Graphs with numbers and sizes that are known only when they run: `x[mask]`, `x[:, :n]`.

Dynamo's graphs have symbols for them. To others they are given here, where a trace without has
found that it cannot go on: inputs of fixed sizes, in an environment that may make symbols.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from magpy_like.torch_compat.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    detect_fake_mode,
)

#: What a trace raises where it would have to know what a tensor holds.
DATA_DEPENDENT_ERRORS = DataDependentOutputException, DynamicOutputShapeException

_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def make_sizes_symbolic(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any]] | None:
    """The graph and its example inputs for a trace in which what is not known is a symbol; None
    where it was one already."""
    if detect_fake_mode(example_inputs) is not None:
        return None
    mode = FakeTensorMode(shape_env=ShapeEnv())
    examples = [
        mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x
        for x in example_inputs
    ]
    gm = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    for node in gm.graph.nodes:
        if node.target is operator.getitem:
            node.target = _getitem
    gm.recompile()
    return gm, examples


def _getitem(source: Any, place: Any) -> Any:
    """A subscript in which the ends of slices that are tensors are read: Python's own asks them for
    what they hold, which no trace can follow."""
    several = isinstance(place, tuple)
    places = [_slice(p) if isinstance(p, slice) else p for p in (place if several else (place,))]
    return source[tuple(places) if several else places[0]]


def _slice(place: slice) -> slice:
    return slice(*map(_number, (place.start, place.stop, place.step)))


def _number(end: Any) -> Any:
    whole = isinstance(end, torch.Tensor) and end.dim() == 0 and end.dtype in _NUMBERS
    return end.item() if whole else end

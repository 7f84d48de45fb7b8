"""Unbacked symbols: data-dependent sizes and numbers, as in ``x[mask]`` and ``x[:, :n]``.

Dynamo's graphs have symbols for them. Other graphs are first traced without; where that trace
fails, it is repeated with inputs of fixed sizes in a shape environment that may create symbols.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.torch_compat.tracing.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    detect_fake_mode,
)
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule
from magpy_like.torch_interop.symbols import ShapeEnvironment

#: Raised by a trace that would depend on the elements of a tensor.
DATA_DEPENDENT_ERRORS = DataDependentOutputException, DynamicOutputShapeException

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def make_sizes_symbolic(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any]] | None:
    """A copy of the graph and example inputs for a trace with symbols for data-dependent sizes.

    None if the example inputs already have a fake mode.
    """
    if detect_fake_mode(example_inputs) is not None:
        return None
    mode = FakeTensorMode(shape_env=ShapeEnvironment())
    examples = [
        mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x
        for x in example_inputs
    ]
    gm = UnobservedGraphModule(gm, copy.deepcopy(gm.graph))
    for node in gm.graph.nodes:
        if node.target is operator.getitem:
            node.target = _getitem
    gm.recompile()
    return gm, examples


def _getitem(source: Any, index: Any) -> Any:
    """A subscript whose slice bounds may be tensors: ``item`` makes symbols of them, where Python's
    subscript calls their ``__index__``, which no trace can follow."""
    several = isinstance(index, tuple)
    indices = [_slice(i) if isinstance(i, slice) else i for i in (index if several else (index,))]
    return source[tuple(indices) if several else indices[0]]


def _slice(bounds: slice) -> slice:
    return slice(*map(_number, (bounds.start, bounds.stop, bounds.step)))


def _number(bound: Any) -> Any:
    is_integer = isinstance(bound, torch.Tensor) and bound.dim() == 0 and bound.dtype in _INTEGERS
    return bound.item() if is_integer else bound

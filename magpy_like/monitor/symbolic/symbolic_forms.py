"""Symbolic forms of operators that torch implements with sizes as plain numbers.

Where sizes vary, such an operator would specialize them: in the symbolic run, and again when a
backend traces the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magpy_like.native.instance_checks import is_instance


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """``torch.take_along_dim``: all dimensions but ``dim`` are broadcast."""
    if dim is None:
        return torch.gather(input.reshape(-1), 0, indices.reshape(-1))
    own, wanted = list(input.shape), list(indices.shape)
    own[dim], wanted[dim] = wanted[dim], own[dim]
    return torch.gather(
        input.broadcast_to(torch.broadcast_shapes(wanted, input.shape)),
        dim,
        indices.broadcast_to(torch.broadcast_shapes(own, indices.shape)),
    )


def getitem(tensor: Tensor, key: Any) -> Tensor:
    """``tensor[key]``, where numbers in the key vary."""
    selected, rest = _select(tensor, key)
    return selected[rest] if rest else selected


def setitem(tensor: Tensor, key: Any, value: Any) -> None:
    """``tensor[key] = value``, where numbers in the key vary."""
    selected, rest = _select(tensor, key)
    selected[rest] = value


def _select(tensor: Tensor, key: Any) -> tuple[Tensor, tuple[Any, ...]]:
    """The view that the numbers in a key select, and the rest of the key."""
    parts = key if is_instance(key, tuple) else (key,)
    unnamed = tensor.dim() - sum(part is not None and part is not ... for part in parts)
    rest: list[Any] = []
    dim = 0
    for part in parts:
        if part is ...:
            dim += unnamed
            rest.append(part)
        elif part is None or is_instance(part, slice):
            dim += part is not None
            rest.append(part)
        else:
            tensor = tensor.select(dim, part)
    return tensor, tuple(rest)


def is_basic_key(key: Any) -> bool:
    """True if a key of numbers, slices, ``None`` and ``...`` selects a view."""
    parts = key if type(key) is tuple else (key,)
    return all(
        part is None or part is ... or type(part) in (int, slice) or is_instance(part, np.integer)
        for part in parts
    )


SYMBOLIC_FORMS: dict[Any, Callable[..., Any]] = {
    torch.take_along_dim: take_along_dim,
    torch.Tensor.take_along_dim: take_along_dim,
}

SUBSCRIPTS: dict[Any, Callable[..., Any]] = {
    operator.getitem: getitem,
    torch.Tensor.__getitem__: getitem,
    operator.setitem: setitem,
    torch.Tensor.__setitem__: setitem,
}

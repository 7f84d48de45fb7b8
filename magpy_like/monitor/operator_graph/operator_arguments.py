"""Arguments of operators, before they become arguments of graph nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

INFERS_DTYPE = {torch.tensor, torch.as_tensor, torch.asarray}
"""Functions that infer the element type from a Python number."""
BOUNDS = frozenset({"clamp", "clamp_", "clip", "clip_"})
"""Operators with a lower and an upper bound."""
WRITTEN_AS_LITERALS = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype,
        torch.device, torch.layout, torch.memory_format,
    }
)  # fmt: skip
"""Types whose values ``torch.fx`` writes into the graph's source."""


def is_made_of_arrays(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
    """True if an operator returned a tensor for NumPy arrays and no tensor."""
    if not any(is_instance(arg, np.ndarray) for arg in args):
        return False
    tensors = any(is_instance(arg, torch.Tensor) for arg in (*args, *kwargs.values()))
    return is_instance(result, torch.Tensor) and not tensors


def without_size_argument(operation: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a legacy constructor with a size as separate integers: the graph writes a
    ``torch.Size`` as a tuple, which these constructors take for the elements.

    Raises:
        Split: the size is empty.
    """
    if not args or type(args[-1]) is not torch.Size or not _is_legacy_constructor(operation):
        return args
    if not args[-1]:
        raise Split(
            SplitReason.UNSUPPORTED_OPERAND,
            "creates a tensor without dimensions by a legacy constructor",
        )
    return (*args[:-1], *args[-1])


def _is_legacy_constructor(operation: Any) -> bool:
    """True for ``torch.Tensor(…)``, ``torch.FloatTensor(…)`` and ``tensor.new(…)``."""
    if operation is torch.Tensor or operation is torch.Tensor.new:
        return True
    return type(operation) is type(torch.FloatTensor)


def scalar_tensor_kwargs(number: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of ``torch.tensor(number)`` for ``torch.scalar_tensor``, which does not
    infer the element type from the number."""
    inferred = torch.int64 if type(number) is int else torch.get_default_dtype()
    dtype = kwargs.get("dtype")
    return {**kwargs, "dtype": inferred if dtype is None else dtype}


def holds_array_scalar(value: Any) -> bool:
    """True if a value is, or nested lists hold, a NumPy scalar."""
    if is_instance(value, list | tuple):
        return any(map(holds_array_scalar, value))
    return is_instance(value, np.generic)


def holds_tensor(value: Any) -> bool:
    """True if a value is, or nested lists hold, a tensor."""
    if is_instance(value, torch.Tensor):
        return True
    return is_instance(value, tuple | list) and any(map(holds_tensor, value))


def may_vary(value: Any) -> bool:
    """True if an argument may differ at the next call, or lead to tensors.

    False for a ``Sequential``, although it is iterable: its consumer calls it in its state then.
    """
    if is_instance(value, torch.nn.Module):
        return False
    return is_instance(value, set | frozenset) or hasattr(type(value), "__iter__")


def nodes_in(argument: Any) -> list[fx.Node]:
    """The nodes in a node's argument."""
    found: list[fx.Node] = []
    fx.node.map_arg(argument, found.append)
    return found

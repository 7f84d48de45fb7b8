"""Functions as targets of graph nodes, and one that replaces a tensor's data."""

from __future__ import annotations

import operator
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.wrapped_functions import REPLAYED
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.operators import OpOverload, OpOverloadPacket


def graph_function(operation: Callable[..., Any], args: tuple[Any, ...] = ()) -> Callable[..., Any]:
    """A function that ``torch.fx`` can name, for one that its module and name do not lead to."""
    if is_of_negative_base(operation, args):
        return pow
    if is_instance(operation, types.FunctionType) and REPLAYED in operation.__dict__:
        return operation
    module = sys.modules.get(getattr(operation, "__module__", None) or "")
    if getattr(module, getattr(operation, "__name__", ""), None) is operation:
        return operation
    if is_instance(operation, OpOverload | OpOverloadPacket):
        return operation
    if getattr(torch, getattr(operation, "__name__", ""), None) is operation:
        return operation

    def run(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)

    owner = getattr(operation, "__self__", None) or getattr(operation, "__objclass__", None)
    stem = getattr(owner, "__name__", "") or ""
    name = "_".join(filter(None, (stem, getattr(operation, "__name__", "operator"))))
    run.__name__ = re.sub(r"\W", "_", name)
    run.__qualname__ = run.__name__
    setattr(run, REPLAYED, operation)
    return run


def is_of_negative_base(operation: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """True for a power of a number with a sign.

    ``torch.fx`` writes it as `-2 ** x`, which negates the power in Python; it does so in its own
    copies, whatever the source of this graph.
    """
    return operation in (operator.pow, pow) and repr(args[0]).startswith("-")


class _ReplaceData(torch.autograd.Function):
    """The data of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def replace_data(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``tensor`` after ``tensor.data = value``: its gradients still flow to its inputs, also if the
    program assigns under ``no_grad``."""
    with torch.enable_grad():
        return _ReplaceData.apply(tensor, value.detach())


def before_replacement(node: fx.Node) -> fx.Node:
    """The node of a tensor before the program has set its data: its place in autograd's graph."""
    while node.target is replace_data:
        node = node.all_input_nodes[0]
    return node

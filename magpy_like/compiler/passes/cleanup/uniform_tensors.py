"""Uniform tensors: all elements are one number known at compile time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from magpy_like.compiler.passes.graph_queries import argument, aten, tensor

_FULL = {aten.full.default, aten.full_like.default, aten.new_full.default}
_ZEROS = {aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default}
_ONES = {aten.ones.default, aten.ones_like.default, aten.new_ones.default}
_KEEPING_ELEMENTS = (
    {aten.expand.default, aten.view.default, aten.permute.default, aten.transpose.int}
    | {aten.unsqueeze.default, aten.squeeze.dim, aten.slice.Tensor, aten.clone.default}
    | {aten.alias.default, aten.lift_fresh.default, aten.detach.default}
)
FILLING = {aten.copy.default, aten.fill.Tensor, aten.fill.Scalar}
"""Operators whose result has the elements of their second argument."""


def uniform_value(operand: Any) -> bool | int | float | None:
    """The number that every element of ``operand`` (a node or a number) equals, else None."""
    if not isinstance(operand, Node):
        return operand if type(operand) in (bool, int, float) else None
    if operand.target in _FULL:
        fill = argument(operand, 2 if operand.target is aten.new_full.default else 1, "fill_value")
    elif operand.target is aten.scalar_tensor.default:
        fill = operand.args[0]
    elif operand.target in _ZEROS:
        fill = 0
    elif operand.target in _ONES:
        fill = 1
    elif operand.target in _KEEPING_ELEMENTS:
        fill = uniform_value(operand.args[0])
    elif operand.target in FILLING:
        fill = uniform_value(operand.args[1])
    else:
        return None
    # Asked last: an input of a large graph has thousands of users.
    if any(user.op == "call_function" and _writes(user) for user in operand.users):
        return None
    return _as_stored(fill, operand)


def _writes(user: Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    return schema is None or schema.is_mutable


def _as_stored(fill: Any, node: Node) -> bool | int | float | None:
    """``fill`` as the tensor's dtype stores it; None if it stores another number."""
    val = tensor(node)
    if val is None or type(fill) not in (bool, int, float) or val.is_complex():
        return None
    if val.is_floating_point():
        return float(fill)
    if val.dtype == torch.bool:
        return bool(fill)
    return int(fill) if math.isfinite(fill) and fill == int(fill) else None

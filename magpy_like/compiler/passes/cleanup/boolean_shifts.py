"""Shifts of boolean tensors, such as ``mask << 2``, as eager computes them: of 0 and 1."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

_SHIFTS = {
    operator.lshift: torch.bitwise_left_shift,
    operator.rshift: torch.bitwise_right_shift,
}


def shift_booleans(gm: GraphModule) -> bool:
    """Replace Python's shift operators by functions that shift booleans too; True if any was."""
    found = [node for node in gm.graph.nodes if node.target in _SHIFTS]
    for node in found:
        node.target = _shift(node.target)
    if found:
        gm.recompile()
    return bool(found)


def _shift(operation: Any) -> Any:
    def shift(a: Any, b: Any) -> Any:
        dtypes = [x.dtype for x in (a, b) if isinstance(x, Tensor)]
        is_boolean = torch.bool in dtypes and not any(d.is_floating_point for d in dtypes)
        return (_SHIFTS[operation] if is_boolean else operation)(a, b)

    return shift

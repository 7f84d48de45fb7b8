"""Contiguous results of functions that AOTAutograd traces for another layout.

Eager returns these results contiguous; the operators that AOTAutograd decomposes the functions
into, or the operators as torch describes them without data, keep the argument's layout. The copy is
inserted in the captured graph, so that all operators after it, views among them, are traced for
eager's layout.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.torch_compat.operators import OpOverload, standard_gamma


def make_results_contiguous(gm: GraphModule) -> bool:
    """Make the results of such functions contiguous, in place; True if there are any."""
    found = [node for node in gm.graph.nodes if _function(node) in _LAYOUTS]
    for node in found:
        with gm.graph.inserting_after(node):
            new = gm.graph.call_function(_LAYOUTS[_function(node)], (node,))
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    if found:
        gm.recompile()
    return bool(found)


def _function(node: Node) -> Any:
    """What a node calls; of an overload of an operator, the operator."""
    target: Any = node.target
    return target.overloadpacket if isinstance(target, OpOverload) else target


def _make_contiguous(result: Any) -> Any:
    return result.contiguous() if isinstance(result, Tensor) else result


def _make_pooled_contiguous(result: Any) -> Any:
    """Without gradients, the CPU has a kernel of its own for ``max_pool1d``."""
    if not isinstance(result, Tensor) or result.device.type != "cpu" or result.requires_grad:
        return result
    return result.contiguous()


aten = torch.ops.aten
_LAYOUTS = {
    F.one_hot: _make_contiguous,
    F.max_pool1d: _make_pooled_contiguous,
    torch.max_pool1d: _make_pooled_contiguous,
    torch.poisson: _make_contiguous,
    aten.poisson: _make_contiguous,
    standard_gamma: _make_contiguous,
    aten._standard_gamma: _make_contiguous,
}

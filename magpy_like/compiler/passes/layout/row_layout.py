"""Results that eager lays out row by row, of functions that torch takes apart before their
operators could be told.

What it traces instead lies like the argument. The rows are made where the graph was captured, so
that all that follows, views among them, is traced for where eager has them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule


def make_results_contiguous(gm: GraphModule) -> bool:
    """Lay the results of such functions out as eager does; whether there are any."""
    found = [node for node in gm.graph.nodes if node.target in _ROWS]
    for node in found:
        with gm.graph.inserting_after(node):
            new = gm.graph.call_function(_ROWS[node.target], (node,))
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    if found:
        gm.recompile()
    return bool(found)


def _in_rows(result: Any) -> Any:
    return result.contiguous() if isinstance(result, Tensor) else result


def _pooled(result: Any) -> Any:
    """Without gradients, the CPU has a kernel of its own for maxima of lines."""
    if not isinstance(result, Tensor) or result.device.type != "cpu" or result.requires_grad:
        return result
    return result.contiguous()


_ROWS = {
    F.one_hot: _in_rows,
    F.max_pool1d: _pooled,
    torch.max_pool1d: _pooled,
}

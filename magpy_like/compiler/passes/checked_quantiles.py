"""Quantiles: the check of their ranks, which torch leaves out when it traces them.

Eager refuses ranks outside of [0, 1] on a CPU. A traced quantile only fails for an index out of
bounds, which a rank need not reach.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.graph_queries import argument
from magpy_like.graph_operators.control_operators import name_of

_QUANTILES = frozenset(("quantile", "nanquantile"))


def check_quantiles(gm: GraphModule) -> None:
    """Check the ranks of a captured graph's quantiles when it runs, in place.

    Where a check fails, the call runs in eager, which raises.
    """
    changed = False
    for node in list(gm.graph.nodes):
        if not node.op.startswith("call") or name_of(node).split(".")[0] not in _QUANTILES:
            continue
        ranks = argument(node, 1, "q")
        if isinstance(ranks, Node):
            values = argument(node, 0, "input", node.kwargs.get("self"))
            with gm.graph.inserting_before(node):
                checked = gm.graph.call_function(_check_ranks, (ranks, values))
            node.replace_input_with(ranks, checked)
            changed = True
    if changed:
        gm.recompile()


def _check_ranks(ranks: Any, values: Tensor) -> Any:
    if not isinstance(ranks, Tensor) or values.device.type != "cpu":
        return ranks
    checked = torch.ops.magpy_like.probabilities.default(ranks.detach(), "quantile() q values")
    # The difference is zero: the operator has no gradient.
    return ranks + (checked - ranks.detach()) if ranks.requires_grad else checked

"""Inner gradients: calls of ``torch.autograd.grad`` inside a captured graph.

AOTAutograd traces such a call like any other: into the operators of the backward pass, and through
them once more for ``create_graph`` and for the gradients of the graph's results.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule

_RETAIN_GRAPH = 3
"""The index of ``retain_graph`` among the arguments of ``torch.autograd.grad``."""


def retain_inner_graphs(gm: GraphModule) -> None:
    """Set ``retain_graph=True`` on every such call, in place.

    Tracing the gradients of the graph's results reads the saved tensors once more. Memory planning
    decides anew when the compiled graph frees them.
    """
    for node in gm.graph.find_nodes(op="call_function", target=torch.autograd.grad):
        if len(node.args) > _RETAIN_GRAPH:
            node.update_arg(_RETAIN_GRAPH, True)
        else:
            node.update_kwarg("retain_graph", True)
        gm.recompile()

"""Gradients that a program takes inside, with ``torch.autograd.grad``.

AOTAutograd traces that call like any other: into the operators of the backward pass, and through
them once more for ``create_graph`` and for the gradients of the graph's results.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule

_RETAIN = 3  # the place of ``retain_graph`` among the arguments


def retain_inner_graphs(gm: GraphModule) -> None:
    """Let no such call free what operators have saved: tracing gradients of the graph's results
    reads it once more. What is freed in the compiled graph is found out anew."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.autograd.grad):
        if len(node.args) > _RETAIN:
            node.update_arg(_RETAIN, True)
        else:
            node.update_kwarg("retain_graph", True)
        gm.recompile()

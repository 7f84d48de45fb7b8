"""Convolution biases on a GPU as additions.

cuDNN's convolutions have no bias: eager adds it in a pass over the whole result. An addition fuses
with the operators that follow (an epilogue).
"""

from __future__ import annotations

from torch.fx import GraphModule

from magpy_like.compiler.passes.graph_queries import aten, insert, replace, tensor


def split_convolution_biases(gm: GraphModule) -> bool:
    """Split biases from convolutions, in place; True if the graph changed."""
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        image, weight, bias, *rest = node.args
        result = tensor(node)
        groups = rest[-1]  # grouped ones may run kernels of torch's own, which add the bias
        if bias is None or result is None or result.device.type != "cuda" or groups != 1:
            continue
        bare = insert(node.graph, node.target, image, weight, None, *rest, like=node)
        column = insert(node.graph, aten.view.default, bias, [-1] + [1] * (result.dim() - 2),
                        like=node)  # fmt: skip
        changed |= replace(node, insert(node.graph, aten.add.Tensor, bare, column, like=node))
    return changed

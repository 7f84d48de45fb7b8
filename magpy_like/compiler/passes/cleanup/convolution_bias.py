"""Biases of convolutions on a GPU as sums of their own.

cuDNN's convolutions have none: eager adds them in a pass over the whole result. A sum is computed
along with what follows.
"""

from __future__ import annotations

from torch.fx import GraphModule

from magpy_like.compiler.passes.graph_queries import aten, insert, replace, tensor


def split_convolution_biases(gm: GraphModule) -> bool:
    """Take biases out of convolutions; whether anything changed."""
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        image, weight, bias, *rest = node.args
        result = tensor(node)
        groups = rest[-1]  # those with several may be kernels of torch's own, which add it
        if bias is None or result is None or result.device.type != "cuda" or groups != 1:
            continue
        bare = insert(node.graph, node.target, image, weight, None, *rest, like=node)
        column = insert(node.graph, aten.view.default, bias, [-1] + [1] * (result.dim() - 2),
                        like=node)  # fmt: skip
        changed |= replace(node, insert(node.graph, aten.add.Tensor, bare, column, like=node))
    return changed

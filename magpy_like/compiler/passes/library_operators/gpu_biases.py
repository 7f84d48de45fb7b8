"""Biases on a GPU as additions, which fuse with the operators that follow (an epilogue).

cuDNN's convolutions have no bias: eager adds it in a pass over the whole result.

cuBLAS adds the bias of a matrix product by itself, but has other kernels for float32 then.
*Measured* on an H100, microseconds with and without bias, for weights of 768 x 768, 768 x 3072 and
3072 x 768: 128 rows 24.5 and 11.8, 26.7 and 22.5, 53.3 and 23.7; 2048 rows 67 and 69, 230 and 231,
254 and 211. In half precision the bias costs at most half a microsecond.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.graph_queries import aten, insert, replace, tensor
from magpy_like.torch_compat.float32_precision import gpu_products_use_tf32

MAX_ROWS = 512
"""Rows of a float32 product up to which its bias is split from it."""


def split_biases(gm: GraphModule) -> bool:
    """Split biases from convolutions and from float32 products, in place; True if the graph
    changed."""
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        changed |= _is_on_gpu(node) and _split_convolution(node)
    for node in gm.graph.find_nodes(op="call_function", target=aten.addmm.default):
        changed |= _is_on_gpu(node) and _split_product(node)
    return changed


def _is_on_gpu(node: Node) -> bool:
    result = tensor(node)
    return result is not None and result.device.type == "cuda"


def _split_convolution(node: Node) -> bool:
    image, weight, bias, *rest = node.args
    groups = rest[-1]  # grouped ones may run kernels of torch's own, which add the bias
    if bias is None or groups != 1:
        return False
    result = tensor(node)
    assert result is not None
    bare = insert(node.graph, node.target, image, weight, None, *rest, like=node)
    column = insert(node.graph, aten.view.default, bias, [-1] + [1] * (result.dim() - 2),
                    like=node)  # fmt: skip
    return replace(node, insert(node.graph, aten.add.Tensor, bare, column, like=node))


def _split_product(node: Node) -> bool:
    bias, left, right = node.args
    result = tensor(node)
    assert result is not None
    rows = result.shape[0]
    if (
        node.kwargs
        or result.dtype != torch.float32
        or gpu_products_use_tf32()
        or not isinstance(rows, int)
        or rows > MAX_ROWS
    ):
        return False
    product = insert(node.graph, aten.mm.default, left, right, like=node)
    return replace(node, insert(node.graph, aten.add.Tensor, product, bias, like=node))

"""Kernels for float32 matrix products on a CPU: oneDNN for large ones, own kernels for narrow ones.

A product of a few rows runs on the operands' own layout (``runtime.narrow_products``).

``aten::mm`` and ``aten::addmm`` call the BLAS that torch was built with. *Measured* on an AMD
processor with AVX-512: its matrix product took 2.2 times as long as oneDNN's, with the weights as
they are; below some two million multiplications the dearer call ate the gain. MKL is best on
Intel's own processors: there (*measured* on a Xeon with AVX-512) oneDNN's is as fast for layers,
and takes up to twice as long for their gradients, so products stay with MKL. Both compute in
float32, or as ``torch.set_float32_matmul_precision`` sets them both.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from magpy_like.compiler.passes.graph_queries import aten, have_same_sizes, insert, replace, tensor
from magpy_like.compiler.runtime import narrow_products
from magpy_like.disk_cache.cache_entries import processor
from magpy_like.torch_interop.onednn import has_onednn

mkldnn = torch.ops.mkldnn

MIN_COLUMNS_FOR_COPY = 128
"""Columns of the result from which a copy of a transposed left operand pays."""


def choose_product_kernels(gm: GraphModule) -> bool:
    """Have ``mm`` and ``addmm`` computed by the fastest kernel; True if the graph changed."""
    if is_vendor_blas():
        return False
    changed = False
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in (aten.mm.default, aten.addmm.default):
            new = _choose_product(node)
            changed |= new is not None and replace(node, new)
    return changed


def is_vendor_blas() -> bool:
    """True if the BLAS and the processor are from the same vendor."""
    return torch.backends.mkl.is_available() and "GenuineIntel" in processor()


def _choose_product(node: Node) -> Node | None:
    bias, a, b = node.args if node.target is aten.addmm.default else (None, *node.args)
    left, right = tensor(a), tensor(b)
    if left is None or right is None or node.kwargs:
        return None
    if any(
        val is None or val.dtype != torch.float32 or val.device.type != "cpu"
        for val in (left, right, *([] if bias is None else [tensor(bias)]))
    ):
        return None
    onednn = _is_better_in_onednn(left, right)
    fused_bias = bias if bias is not None and _is_column_bias(bias, right) else None
    if _is_narrow(left, right):
        target = narrow_products.PRODUCT
        product = insert(node.graph, target, a, b, fused_bias, onednn, like=node)
    elif onednn and _is_large(left, right):
        # oneDNN's operator multiplies by the transpose of its weight argument.
        weight = insert(node.graph, aten.permute.default, b, [1, 0], like=node)
        target = mkldnn._linear_pointwise.default
        product = insert(node.graph, target, a, weight, fused_bias, "none", [], "", like=node)
    else:
        return None
    if bias is None or fused_bias is not None:
        return product
    return insert(node.graph, aten.add.Tensor, product, bias, like=node)


def _is_better_in_onednn(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True if oneDNN's product is better than the BLAS's for large operands."""
    if not has_onednn():
        return False
    if not _is_matrix(right):
        return False
    columns = _hint(right.shape[1])
    # Otherwise oneDNN copies the left operand to rows: time, and memory at the peak of training.
    return columns is None or columns >= MIN_COLUMNS_FOR_COPY or _are_known(left.stride()[1] == 1)


def _is_narrow(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True for a few rows, or columns times rows, by the sizes' hints (``narrow_products``)."""
    numbers = (*left.shape, right.shape[1], left.stride()[1], *right.stride())
    known = [_hint(number) for number in numbers]
    if None in known:
        return False
    m, k, n, *strides = known
    return narrow_products.choose_kernel(m, n, k, *strides) is not None


def _is_large(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True for many multiplications; not for a matrix times a vector, where the BLAS is good."""
    sizes = [_hint(size) for size in (*left.shape, right.shape[1])]
    known = [size for size in sizes if size is not None]
    return (
        len(known) == 3
        and math.prod(known) >= narrow_products.MIN_ONEDNN_MULTIPLICATIONS
        and min(known[0], known[2]) > 1
    )


def _hint(size: Any) -> int | None:
    """The size; of a symbolic one its hint, which may be None."""
    return size if isinstance(size, int) else size.node.hint


def _is_matrix(val: torch.Tensor) -> bool:
    """True if rows or columns are contiguous and disjoint: neither expanded nor strided."""
    rows, columns = val.shape
    down, across = val.stride()
    return _are_known(across == 1, down >= columns) or _are_known(down == 1, across >= rows)


def _are_known(*conditions: Any) -> bool:
    """True if the conditions hold for all values of the symbols in them."""
    return all(statically_known_true(c) for c in conditions)


def _is_column_bias(bias: Node, right: torch.Tensor) -> bool:
    """True for a contiguous vector with one element per column of the result."""
    val = tensor(bias)
    return (
        val is not None
        and have_same_sizes(val.shape, [right.shape[1]])
        and _are_known(val.stride()[0] == 1)
    )

"""Matrix products of float32 on a CPU: large ones are oneDNN's, which torch carries, and those of a
few rows are computed as they lie (see ``narrow``).

``aten::mm`` and ``aten::addmm`` call the BLAS that torch was built with. *Measured* on an AMD
processor with AVX-512: its matrix product took 2.2 times as long as oneDNN's, with the weights as
they are; below some two million multiplications the dearer call ate the gain. MKL gives its best
on Intel's own processors: there (*measured* on a Xeon with AVX-512) oneDNN's is as fast for layers,
and takes up to twice as long for their gradients, so that products stay where they are. Both
compute in float32 (or, where the program lowered ``torch.set_float32_matmul_precision``, as both
are told).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from magpy_like.compiler.passes.graph_queries import aten, have_same_sizes, insert, replace, tensor
from magpy_like.compiler.runtime import narrow_products
from magpy_like.disk_cache.code_cache import processor

mkldnn = torch.ops.mkldnn

WORTH_A_COPY = 128  # columns of the result from which a copy of the left operand's transpose pays


def choose_product_kernels(gm: GraphModule) -> bool:
    """Have ``mm`` and ``addmm`` computed by who does it fastest; whether anything changed."""
    if is_vendor_blas():
        return False
    changed = False
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in (aten.mm.default, aten.addmm.default):
            new = _placed(node)
            changed |= new is not None and replace(node, new)
    return changed


def is_vendor_blas() -> bool:
    """Whether the BLAS was made by who made the processor."""
    return torch.backends.mkl.is_available() and "GenuineIntel" in processor()


def _placed(node: Node) -> Node | None:
    bias, a, b = node.args if node.target is aten.addmm.default else (None, *node.args)
    left, right = tensor(a), tensor(b)
    if left is None or right is None or node.kwargs:
        return None
    if any(
        val is None or val.dtype != torch.float32 or val.device.type != "cpu"
        for val in (left, right, *([] if bias is None else [tensor(bias)]))
    ):
        return None
    onednn = _onednn_takes(left, right)
    inside = bias if bias is not None and _one_per_column(bias, right) else None
    if _is_narrow(left, right):
        target = narrow_products.PRODUCT
        product = insert(node.graph, target, a, b, inside, onednn, like=node)
    elif onednn and _is_large(left, right):
        # The library's operator multiplies by the transpose of what it is given.
        weight = insert(node.graph, aten.permute.default, b, [1, 0], like=node)
        target = mkldnn._linear_pointwise.default
        product = insert(node.graph, target, a, weight, inside, "none", [], "", like=node)
    else:
        return None
    if bias is None or inside is not None:
        return product
    return insert(node.graph, aten.add.Tensor, product, bias, like=node)


def _onednn_takes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether oneDNN's product is better than the BLAS's where it is large."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if not _is_matrix(right):
        return False
    columns = _number(right.shape[1])
    # Otherwise the library copies it to rows: time, and memory at the peak of training.
    return columns is None or columns >= WORTH_A_COPY or _known(left.stride()[1] == 1)


def _is_narrow(left: torch.Tensor, right: torch.Tensor) -> bool:
    """A few rows, or columns times rows, as far as the example tells: see ``narrow``."""
    numbers = (*left.shape, right.shape[1], left.stride()[1], *right.stride())
    known = [_number(number) for number in numbers]
    if None in known:
        return False
    m, k, n, *strides = known
    return narrow_products.choose_kernel(m, n, k, *strides) is not None


def _is_large(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Many multiplications, and not a matrix times a vector, at which the BLAS is good."""
    sizes = [_number(size) for size in (*left.shape, right.shape[1])]
    known = [size for size in sizes if size is not None]
    return (
        len(known) == 3
        and math.prod(known) >= narrow_products.MIN_ONEDNN_MULTIPLICATIONS
        and min(known[0], known[2]) > 1
    )


def _number(size: Any) -> int | None:
    """A size as it is in the example."""
    return size if isinstance(size, int) else size.node.hint


def _is_matrix(val: torch.Tensor) -> bool:
    """Whether rows or columns lie contiguous and apart: not expanded, not every other element."""
    rows, columns = val.shape
    down, across = val.stride()
    return _known(across == 1, down >= columns) or _known(down == 1, across >= rows)


def _known(*conditions: Any) -> bool:
    return all(statically_known_true(c) for c in conditions)


def _one_per_column(bias: Node, right: torch.Tensor) -> bool:
    val = tensor(bias)
    return (
        val is not None
        and have_same_sizes(val.shape, [right.shape[1]])
        and _known(val.stride()[0] == 1)
    )

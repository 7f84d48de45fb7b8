"""Pattern rewrites of an ATen graph, as a table: operator at the root -> rewrite rules.

A rule takes a node and returns its replacement, or None if the pattern does not match. The results
equal eager's up to rounding, for NaN and infinite inputs too, except where a rule states otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.cleanup.uniform_tensors import uniform_value
from magpy_like.compiler.passes.graph_queries import (
    argument,
    aten,
    consumers,
    have_same_sizes,
    insert,
    is_pure,
    is_view,
    replace,
    tensor,
)

Rewrite = Callable[[Node], "Node | None"]


def rewrite_patterns(gm: GraphModule, *, inference: bool) -> bool:
    """Apply the table once to every node, in order; True if the graph changed."""
    changed = False
    for node in list(gm.graph.nodes):
        if not is_pure(node):
            continue
        for rule in TABLE.get(node.target, ()):
            if rule in _INFERENCE_ONLY and not inference:
                continue
            new = rule(node)
            if new is not None and replace(node, new):
                changed = True
                break
    return changed


# --- helpers -----------------------------------------------------------------------------------


def _is_sole_use(node: Any, target: Any) -> bool:
    """True if ``node`` calls ``target`` for a single user, and so is dead once that is replaced."""
    return isinstance(node, Node) and node.target is target and len(node.users) == 1


def _needs_own_kernel(node: Node) -> bool:
    """True if an elementwise ``node`` would not be fused into the kernels of its users."""
    return not any(
        torch.Tag.pointwise in getattr(user.target, "tags", ()) or _is_reduction(user)
        for user in consumers(node)
    )


def _is_reduction(node: Node) -> bool:
    return torch.Tag.reduction in getattr(node.target, "tags", ()) or node.target in (
        aten._softmax.default,
        aten._log_softmax.default,
        aten.native_layer_norm.default,
    )


def _is_wide(node: Any) -> bool:
    """True for float32 and float64: in lower precisions eager rounds between two operators."""
    val = tensor(node)
    return val is not None and val.dtype in (torch.float32, torch.float64)


def _have_one_dtype(*nodes: Any) -> bool:
    vals = [tensor(node) for node in nodes]
    return (
        None not in vals and len({(val.dtype, val.device) for val in vals if val is not None}) == 1
    )


def _plain_operands(node: Node) -> tuple[Any, Any] | None:
    """The two operands of an ``add`` or ``sub`` without ``alpha``, if both are nodes."""
    if argument(node, 2, "alpha", 1) != 1 or not all(isinstance(a, Node) for a in node.args[:2]):
        return None
    return node.args[0], node.args[1]


# --- matrix products ---------------------------------------------------------------------------


def add_of_product(node: Node) -> Node | None:
    """``bias + a @ b`` is ``addmm``/``baddbmm``, if the sum would be a kernel by itself.

    The sum stays if its users are loop kernels: an addition fused there costs no memory traffic.
    """
    operands = _plain_operands(node)
    if operands is None or not _needs_own_kernel(node):
        return None
    for product, bias in (operands, operands[::-1]):
        for plain, fused in (
            (aten.mm.default, aten.addmm.default),
            (aten.bmm.default, aten.baddbmm.default),
        ):
            if (
                _is_sole_use(product, plain)
                and _have_one_dtype(product, bias)
                and _is_wide(product)
            ):
                factor, result = tensor(product), tensor(node)
                assert factor is not None and result is not None
                if have_same_sizes(factor.shape, result.shape):  # addmm expands only the bias
                    return insert(node.graph, fused, bias, *product.args, like=node)
    return None


def sum_out_of_addmm(node: Node) -> Node | None:
    """``addmm(vector, a, b)`` before loop kernels is ``a @ b + vector``.

    The library writes the vector to every row before it multiplies; a loop that reads the product
    anyway adds it at no cost.
    """
    bias, a, b = node.args[:3]
    vector = tensor(bias)
    if node.kwargs or vector is None or vector.dim() != 1 or not _have_one_dtype(bias, a, b):
        return None
    if not _is_wide(bias) or _needs_own_kernel(node):
        return None
    product = insert(node.graph, aten.mm.default, a, b, like=node)
    return insert(node.graph, aten.add.Tensor, product, bias, like=node)


# --- square roots ------------------------------------------------------------------------------

_SQRT = aten.sqrt.default


def reciprocal_of_root(node: Node) -> Node | None:
    """``1 / sqrt(x)``, as ``reciprocal`` or as a division, is ``rsqrt(x)``."""
    root = node.args[0]
    if node.target is aten.div.Tensor:
        root = node.args[1]
        numerator = node.args[0]
        if uniform_value(numerator) != 1:
            return None
        if isinstance(numerator, Node) and not have_same_sizes(
            _shape(root) or [None], _shape(node) or [None]
        ):
            return None
    if not _is_sole_use(root, _SQRT) or not _is_wide(root) or not _have_one_dtype(root, node):
        return None
    return insert(node.graph, aten.rsqrt.default, root.args[0], like=node)


def division_by_root(node: Node) -> Node | None:
    """``x / sqrt(y)`` is ``x * rsqrt(y)`` where ``y`` is broadcast: one division per row."""
    x, root = node.args[:2]
    if not _is_sole_use(root, _SQRT) or not _have_one_dtype(x, root, node):
        return None
    many, few = tensor(node), tensor(root)
    if many is None or few is None or not _is_wide(x):
        return None
    if not isinstance(x, Node) or have_same_sizes(many.shape, few.shape):
        return None
    inverse = insert(node.graph, aten.rsqrt.default, root.args[0], like=node)
    return insert(node.graph, aten.mul.Tensor, x, inverse, like=node)


def _shape(node: Any) -> list[Any] | None:
    val = tensor(node)
    return None if val is None else list(val.shape)


# --- convolution and batch norm ----------------------------------------------------------------

MIN_OUTPUTS_PER_WEIGHT = 4
"""Scaling the weights at every call pays if there are this many times as many outputs."""


def channel_arithmetic_into_convolution(node: Node) -> Node | None:
    """Sums, differences and products by channel after a convolution go into its weights.

    Batch norm in inference is of this form: ``conv(x, w, b) * s + t`` becomes
    ``conv(x, w * s, b * s + t)``. The graph computes the new weights at each call: an optimizer may
    have modified the weights in between, in ways that no version counter shows. Scaling them costs
    little compared with the convolution. As with matrix products, the arithmetic stays where loop
    kernels read the result anyway.

    Both are the same up to rounding, whatever ``x`` is, if ``w * s`` and ``b * s + t`` are within
    the dtype's range. The ``s`` of a normalisation is at most a parameter times ``eps ** -0.5``,
    and no network has numbers that leave the range with it. Any other ``s`` from the program may be
    anything, such as a 0 that masks an overflow: then the convolution stays as it is.
    """
    if not (_needs_own_kernel(node) and _is_wide(node)):
        return None
    steps: list[tuple[Any, Node]] = []  # from the result back to the convolution
    conv: Any = node
    while conv.target in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor):
        operands = _value_and_channels(conv)
        if operands is None or (conv is not node and len(conv.users) != 1):
            return None
        steps.append((conv.target, operands[1]))
        conv = operands[0]
    if not _is_sole_use(conv, aten.convolution.default):
        return None
    if not _is_normalisation([vector for target, vector in steps if target is aten.mul.Tensor]):
        return None
    x, weight, bias, *_, transposed, _, _ = conv.args
    kernel, result = tensor(weight), tensor(node)
    vectors = [vector for _, vector in steps]
    if (
        transposed
        or kernel is None
        or result is None
        or not _have_one_dtype(node, x, weight, *vectors)
    ):
        return None
    if not _has_few_weights(kernel, result):
        return None
    scale, shift = _compose_steps(node, kernel, bias, steps[::-1])
    if scale is not None:
        shape = [-1] + [1] * (kernel.dim() - 1)
        column = insert(node.graph, aten.view.default, scale, shape, like=node)
        weight = insert(node.graph, aten.mul.Tensor, weight, column, like=node)
    convolution = aten.convolution.default
    return insert(node.graph, convolution, x, weight, shift, *conv.args[3:], like=node)


def _compose_steps(
    node: Node, kernel: torch.Tensor, bias: Any, steps: Sequence[tuple[Any, Node]]
) -> tuple[Any, Any]:
    """(scale, shift) per channel of successive steps after a convolution with ``bias``.

    ``steps`` are (operator, operand with an element per channel). New nodes are inserted before
    ``node``. A scale or shift that would be the identity is None.
    """

    def call(target: Any, *args: Any) -> Node:
        return insert(node.graph, target, *args, like=node)

    scale, shift = None, bias
    others = [d for d in range(kernel.dim()) if d != 1]
    for target, vector in steps:
        missing = kernel.dim() - tensor(vector).dim()  # type: ignore[union-attr]
        ones = [d - missing for d in others if d >= missing]
        vector = call(aten.squeeze.dims, vector, ones)
        if target is aten.mul.Tensor:
            scale = vector if scale is None else call(target, scale, vector)
            shift = shift and call(target, shift, vector)
        elif shift is None:
            shift = call(aten.neg.default, vector) if target is aten.sub.Tensor else vector
        else:
            shift = call(target, shift, vector)
    return scale, shift


def _value_and_channels(node: Node) -> tuple[Node, Node] | None:
    """(value, vector): the operands, if the vector has an element per channel (dimension 1)."""
    operands, result = _plain_operands(node), tensor(node)
    if operands is None or result is None or result.dim() < 3:
        return None
    by_channel = [1, result.shape[1]] + [1] * (result.dim() - 2)
    for value, vector in (operands, operands[::-1]):
        size = _shape(vector)
        if (
            size is None
            or len(size) < result.dim() - 1
            or not have_same_sizes(size, by_channel[result.dim() - len(size) :])
        ):
            continue
        if have_same_sizes(_shape(value) or [], result.shape):
            subtracted_from = node.target is aten.sub.Tensor and value is not operands[0]
            return None if subtracted_from else (value, vector)
    return None


def _is_normalisation(factors: Sequence[Any]) -> bool:
    """True if the factors are ``1 / sqrt(variance + eps)``, with at most one other for each."""
    roots = others = 0
    pending = list(factors)
    while pending:
        factor = pending.pop()
        if isinstance(factor, Node):
            while is_view(factor) or factor.target in (aten._to_copy.default, aten.clone.default):
                factor = factor.all_input_nodes[0]
        target = factor.target if isinstance(factor, Node) else None
        if target is aten.mul.Tensor:
            pending += factor.args
        elif target is aten.rsqrt.default and _is_above_zero(factor.args[0]):
            roots += 1
        elif target in (aten.reciprocal.default, aten.div.Tensor) and _is_root(factor.args[-1]):
            roots += 1
            pending += [a for a in factor.args[:-1] if uniform_value(a) != 1]
        else:
            others += 1
    return others <= roots


def _is_root(value: Any) -> bool:
    return isinstance(value, Node) and value.target is _SQRT and _is_above_zero(value.args[0])


def _is_above_zero(variance: Any) -> bool:
    if not isinstance(variance, Node) or variance.target is not aten.add.Tensor:
        return False
    eps = uniform_value(variance.args[1])
    return isinstance(eps, (int, float)) and eps > 0


def _has_few_weights(kernel: torch.Tensor, result: torch.Tensor) -> bool:
    sizes = [*kernel.shape, *result.shape]
    if not all(type(size) is int for size in sizes):
        return False
    return kernel.numel() * MIN_OUTPUTS_PER_WEIGHT <= result.numel()


_INFERENCE_ONLY = {channel_arithmetic_into_convolution}

TABLE: dict[Any, tuple[Rewrite, ...]] = {
    aten.add.Tensor: (add_of_product, channel_arithmetic_into_convolution),
    aten.sub.Tensor: (channel_arithmetic_into_convolution,),
    aten.mul.Tensor: (channel_arithmetic_into_convolution,),
    aten.addmm.default: (sum_out_of_addmm,),
    aten.reciprocal.default: (reciprocal_of_root,),
    aten.div.Tensor: (reciprocal_of_root, division_by_root),
}

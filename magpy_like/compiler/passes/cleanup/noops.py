"""No-ops: operators that return an argument's value, and chains of views that are one view.

``_NOOPS`` is the table: an operator, and when its result *is* its argument, bit for bit, NaN and
signed zero included. All of them are also checked for equal dtype, sizes and strides, so the row
for ``x * 1`` does not match ``int_x * 1.0``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.alias_analysis import Aliases
from magpy_like.compiler.passes.cleanup.uniform_tensors import uniform_value
from magpy_like.compiler.passes.graph_queries import (
    argument,
    aten,
    have_same_sizes,
    insert,
    is_interchangeable,
    is_pure,
    replace,
    tensor,
)


def _is_always_noop(node: Node) -> bool:
    return True


def _is_real(node: Node) -> bool:
    # For complex numbers these are no no-ops: (inf + 0j) * 1 has a NaN imaginary part.
    val = tensor(node)
    return val is not None and not val.is_complex()


def _has_second_operand(expected: float) -> Callable[[Node], bool]:
    """A predicate: the second operand is ``expected`` and not scaled by ``alpha``."""

    def applies(node: Node) -> bool:
        number = uniform_value(node.args[1])
        return _is_real(node) and number == expected and argument(node, 2, "alpha", 1) == 1

    return applies


def _adds_zero(node: Node) -> bool:
    """True for a sum that returns its first operand.

    ``x + 0`` turns -0.0 into 0.0; ``x + -0.0`` and ``x - 0.0`` return every float as it is.
    """
    val, number = tensor(node), uniform_value(node.args[1])
    if val is None or number != 0 or argument(node, 2, "alpha", 1) != 1 or val.is_complex():
        return False
    if not val.is_floating_point():
        return True
    negative = math.copysign(1.0, number) < 0
    subtracts = node.target in (aten.sub.Tensor, aten.sub.Scalar)
    return negative != subtracts


def _is_integral(node: Node) -> bool:
    val = tensor(node)
    return val is not None and not val.is_floating_point() and not val.is_complex()


def _divides_by_one(node: Node) -> bool:
    return _is_real(node) and uniform_value(node.args[1]) == 1


def _is_whole_slice(node: Node) -> bool:
    return argument(node, 4, "step", 1) == 1


def _has_zero_padding(node: Node) -> bool:
    return all(amount == 0 for amount in node.args[1])


def _has_one_tensor(node: Node) -> bool:
    return len(node.args[0]) == 1


def _has_equal_branches(node: Node) -> bool:
    return node.args[1] is node.args[2]


# Operator -> (index of the argument that equals the result, condition for that).
_NOOPS: dict[Any, tuple[int, Callable[[Node], bool]]] = {
    aten.mul.Tensor: (0, _has_second_operand(1)),
    aten.mul.Scalar: (0, _has_second_operand(1)),
    aten.add.Tensor: (0, _adds_zero),
    aten.add.Scalar: (0, _adds_zero),
    aten.sub.Tensor: (0, _adds_zero),
    aten.sub.Scalar: (0, _adds_zero),
    aten.div.Tensor: (0, _divides_by_one),
    aten.div.Scalar: (0, _divides_by_one),
    aten.pow.Tensor_Scalar: (0, _has_second_operand(1)),
    aten.floor.default: (0, _is_integral),
    aten.ceil.default: (0, _is_integral),
    aten.trunc.default: (0, _is_integral),
    aten.round.default: (0, _is_integral),
    aten.positive.default: (0, _is_always_noop),
    aten.clone.default: (0, _is_always_noop),
    aten._to_copy.default: (0, _is_always_noop),
    torch.ops.prims.convert_element_type.default: (0, _is_always_noop),
    aten.alias.default: (0, _is_always_noop),
    aten.detach.default: (0, _is_always_noop),
    aten.lift_fresh.default: (0, _is_always_noop),
    aten.expand.default: (0, _is_always_noop),
    aten.view.default: (0, _is_always_noop),
    aten._unsafe_view.default: (0, _is_always_noop),
    aten.reshape.default: (0, _is_always_noop),
    aten.permute.default: (0, lambda node: _permutation(node) == sorted(_permutation(node) or [])),
    aten.transpose.int: (0, lambda node: _permutation(node) == sorted(_permutation(node) or [])),
    aten.squeeze.default: (0, _is_always_noop),
    aten.squeeze.dim: (0, _is_always_noop),
    aten.squeeze.dims: (0, _is_always_noop),
    aten.slice.Tensor: (0, _is_whole_slice),
    aten.repeat.default: (0, _is_always_noop),
    aten.constant_pad_nd.default: (0, _has_zero_padding),
    aten.cat.default: (0, _has_one_tensor),
    aten.where.self: (1, _has_equal_branches),
}

# f(f(x)) is f(x).
_IDEMPOTENT = (
    {aten.relu.default, aten.abs.default, aten.floor.default, aten.ceil.default}
    | {aten.trunc.default, aten.round.default, aten.sgn.default, aten.sign.default}
    | {aten.contiguous.default}
)
# f(f(x)) is x.
_INVOLUTIONS = {aten.neg.default, aten.bitwise_not.default}

_CASTS = {aten._to_copy.default, torch.ops.prims.convert_element_type.default}
# Every value of the first type is a value of the second.
_EXACT_CASTS = {
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float64),
    (torch.float16, torch.float64),
    (torch.float32, torch.float64),
    (torch.bool, torch.uint8),
    (torch.bool, torch.int8),
    (torch.bool, torch.int32),
    (torch.bool, torch.int64),
    (torch.bool, torch.float32),
    (torch.int8, torch.int32),
    (torch.uint8, torch.int32),
    (torch.int8, torch.int64),
    (torch.uint8, torch.int64),
    (torch.int32, torch.int64),
    (torch.int32, torch.float64),
}


def remove_noops(gm: GraphModule) -> bool:
    """Remove no-ops, and merge chains of views and of casts; True if there were any."""
    changed = False
    aliases = Aliases(gm.graph)
    for node in list(gm.graph.nodes):
        if not is_pure(node):
            continue
        source = _find_equal_value(node)
        if source is not None and is_interchangeable(node, source):
            if aliases.can_share(node, source):
                aliases.record_sharing(node, source)
                node.replace_all_uses_with(source)
                gm.graph.erase_node(node)
                changed = True
        else:
            merged = _merge_views(gm, node) or _merge_casts(gm, node)
            if merged is not None and replace(node, merged):
                aliases.record_replacement(node, merged)
                changed = True
    return changed


def _find_equal_value(node: Node) -> Node | None:
    """The earlier node whose value this one equals, by the tables; None if there is none."""
    inner = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if node.target in _NOOPS:
        number, applies = _NOOPS[node.target]
        source = node.args[number] if len(node.args) > number else None
        if node.target is aten.cat.default and _has_one_tensor(node):
            source = node.args[0][0]
        if isinstance(source, Node) and applies(node):
            return source
    if inner is None or inner.target is not node.target or len(node.args) != 1:
        return None
    if node.target in _IDEMPOTENT:
        return inner
    if node.target in _INVOLUTIONS and isinstance(inner.args[0], Node):
        return inner.args[0]
    return None


def _permutation(node: Node) -> list[int] | None:
    """The permutation of a ``permute``, ``transpose`` or ``t``; None for other nodes."""
    val = tensor(node)
    if val is None:
        return None
    dims = list(range(val.dim()))
    if node.target is aten.permute.default:
        return [d % len(dims) for d in node.args[1]]
    if node.target is aten.transpose.int and dims:
        a, b = (d % len(dims) for d in node.args[1:3])
        dims[a], dims[b] = dims[b], dims[a]
        return dims
    if node.target is aten.t.default:
        return dims[::-1]
    return None


_RESHAPES = {aten.view.default, aten._unsafe_view.default}


def _merge_views(gm: GraphModule, node: Node) -> Node | None:
    """One view of ``x`` for ``permute(permute(x))`` or ``view(view(x))``; None for other nodes."""
    inner = node.args[0] if node.args else None
    if not isinstance(inner, Node) or inner.op != "call_function":
        return None
    base = inner.args[0] if inner.args else None
    if not isinstance(base, Node) or tensor(base) is None:
        return None
    outer_order, inner_order = _permutation(node), _permutation(inner)
    if outer_order is not None and inner_order is not None:
        order = [inner_order[d] for d in outer_order]
        if order == sorted(order) and not any(u.op == "output" for u in node.users):
            return base
        return insert(gm.graph, aten.permute.default, base, order, like=node)
    if node.target in _RESHAPES and inner.target in _RESHAPES:
        source, result = tensor(base), tensor(node)
        assert source is not None
        if result is None or not source.is_contiguous():
            return None  # a view may fail where a view of a view succeeds
        return insert(gm.graph, aten.view.default, base, node.args[1], like=node)
    return None


def _merge_casts(gm: GraphModule, node: Node) -> Node | None:
    """``x.to(dtype)`` for ``x.to(wider).to(dtype)``, if the wider type holds every ``x``."""
    inner = node.args[0] if node.args else None
    if node.target not in _CASTS or not isinstance(inner, Node) or inner.target not in _CASTS:
        return None
    base = inner.args[0]
    source, middle, result = tensor(base), tensor(inner), tensor(node)
    if source is None or middle is None or result is None:
        return None
    if not (source.device == middle.device == result.device):
        return None
    if (source.dtype, middle.dtype) not in _EXACT_CASTS or not middle.dtype.is_floating_point:
        return None
    if not source.dtype.is_floating_point or not have_same_sizes(source.stride(), result.stride()):
        return None
    return insert(gm.graph, aten._to_copy.default, base, dtype=result.dtype, like=node)

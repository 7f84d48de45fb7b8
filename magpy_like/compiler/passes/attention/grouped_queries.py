"""Attention of a single position whose keys and values were repeated for groups of heads.

Heads of a group share keys and values (grouped-query attention). Programs repeat these for each
head, which copies the whole cache of a decoder for each token. With one query a head, the heads of
a group are as well several queries of one head: the same attention, without copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from magpy_like.compiler.passes.attention.attention_rewrite import (
    called_name,
    compute_fake_values,
    has_writes_between,
)
from magpy_like.compiler.passes.graph_queries import argument, have_same_sizes, is_known_equal

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_OPTIONS = {"attn_mask": 3, "dropout_p": 4, "is_causal": 5, "scale": 6, "enable_gqa": 7}
_RESHAPES = {"reshape", "view", "flatten"}


class _Repeated(NamedTuple):
    """Copies of the heads of ``source`` (batch, heads, length, width), each ``group`` times in a
    row."""

    source: Node
    group: int


def fold_groups_into_queries(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Have attention read keys and values that are repeated for a single position where they are,
    in place; True if the graph changed."""
    calls = gm.graph.find_nodes(op="call_function", target=_ATTENTION)
    calls = [node for node in calls if list(map(_may_repeat, node.args[1:3])) == [True, True]]
    vals = compute_fake_values(gm, example_inputs) if calls else None
    if vals is None:
        return False
    changed = sum(_fold(node, vals) for node in calls) > 0
    if changed:
        gm.recompile()
    return changed


def _may_repeat(node: Any) -> bool:
    if called_name(node) in _RESHAPES:
        node = argument(node, 0, "input")
    return called_name(node) in ("expand", "repeat_interleave")


def _fold(node: Node, vals: dict[Node, Any]) -> bool:
    q, *others = node.args[:3]
    options = {name: argument(node, at, name) for name, at in _OPTIONS.items()}
    k, v = (_find_repeated(other, vals) for other in others)
    if k is None or v is None or k.group != v.group or not _has_one_query(q, vals):
        return False
    if options["is_causal"] or options["dropout_p"] or options["enable_gqa"]:
        return False
    mask = options["attn_mask"]
    if mask is not None and not _is_same_for_heads(vals.get(mask)):
        return False
    if not _is_projected(node) or any(has_writes_between(copy, node) for copy in others):
        return False
    if vals[node].requires_grad:  # gradients would have other strides than eager mode's
        return False
    heads = vals[k.source].shape[1]
    with node.graph.inserting_before(node):

        def call(method: str, *args: Any) -> Node:
            return node.graph.call_method(method, args)

        queries = call("unflatten", call("squeeze", q, 2), 1, (heads, k.group))
        if mask is not None:
            mask = call("expand", mask, -1, -1, k.group, -1)
        given = {"attn_mask": mask, "scale": options["scale"]}
        result = node.graph.call_function(_ATTENTION, (queries, k.source, v.source), given)
        result = call("unsqueeze", call("flatten", result, 1, 2), 2)
    result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    for unused in dict.fromkeys((node, *others)):
        _erase_views(unused)
    return True


def _is_projected(node: Node) -> bool:
    """True if only matrix products read a result, directly or reshaped. They hide its strides,
    which differ between the library's kernels for a dimension of size 1."""
    return all(
        user.args[0] is node
        and (
            called_name(user) in _PRODUCTS or (called_name(user) in _MOVES and _is_projected(user))
        )
        for user in node.users
    )


_PRODUCTS = {"linear", "matmul", "mm"}
_MOVES = {*_RESHAPES, "transpose", "contiguous"}


def _erase_views(node: Node) -> None:
    """Erase a node without users, and the views that only it reads."""
    while not node.users:
        source = node.args[0]
        node.graph.erase_node(node)
        if not isinstance(source, Node) or called_name(source) not in _VIEWS:
            return
        node = source


_VIEWS = {*_RESHAPES, "repeat_interleave", "expand", "getitem", "unsqueeze"}


def _has_one_query(q: Any, vals: dict[Node, Any]) -> bool:
    value = vals.get(q)
    return (
        isinstance(value, torch.Tensor) and value.dim() == 4 and is_known_equal(value.shape[2], 1)
    )


def _is_same_for_heads(mask: Any) -> bool:
    """True for a mask of one row for all heads, which needs no gradient."""
    if not isinstance(mask, torch.Tensor) or mask.requires_grad or mask.dim() != 4:
        return False
    return have_same_sizes(mask.shape[1:3], [1, 1])


def _find_repeated(node: Any, vals: dict[Node, Any]) -> _Repeated | None:
    """The source of repeated heads; None for other tensors."""
    result = vals.get(node)
    if not isinstance(result, torch.Tensor) or result.dim() != 4:
        return None
    if called_name(node) == "repeat_interleave":
        source, group = node.args[0], argument(node, 1, "repeats")
        if argument(node, 2, "dim") not in (1, -3) or type(group) is not int:
            return None
    else:
        source, group = _find_expanded(argument(node, 0, "input"), vals)
    before = vals.get(source)
    if not isinstance(before, torch.Tensor) or before.dim() != 4 or type(group) is not int:
        return None
    batch, heads, *rest = before.shape
    if type(heads) is not int or group < 2:
        return None
    if not have_same_sizes(result.shape, [batch, heads * group, *rest]):
        return None
    return _Repeated(source, group)


def _find_expanded(node: Any, vals: dict[Node, Any]) -> tuple[Any, Any]:
    """The source and the group of ``source[:, :, None].expand(-1, -1, group, -1, -1)``."""
    inner = node.args[0] if called_name(node) == "expand" else None
    if not isinstance(inner, Node) or not inner.args:
        return None, None
    source, expanded = inner.args[0], vals.get(node)
    if called_name(inner) == "unsqueeze":
        found = argument(inner, 1, "dim") in (2, -3)
    else:
        found = called_name(inner) == "getitem" and _inserts_third(inner.args[1])
    if not found or not isinstance(expanded, torch.Tensor) or expanded.dim() != 5:
        return None, None
    return source, expanded.shape[2]


def _inserts_third(subscript: Any) -> bool:
    """True for ``[:, :, None]`` with or without full slices behind."""
    whole = slice(None, None, None)
    return isinstance(subscript, tuple) and subscript in [
        (whole, whole, None, *([whole] * more)) for more in range(3)
    ]

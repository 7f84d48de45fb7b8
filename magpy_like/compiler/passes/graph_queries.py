"""Queries that all passes share: a node's metadata, and replacing a node by another.

A node may be replaced only by a value of the same dtype, device, sizes and strides, and only if one
tensor instead of two makes no difference, see :mod:`~magpy_like.compiler.passes.alias_analysis`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.operators import OpOverload

aten = torch.ops.aten

# The schema declares a new tensor, the operator returns a view.
MAX_LITERAL_BYTES = 1 << 14
_HIDDEN_VIEWS = {aten._unsafe_view.default, aten.lift.default, aten.lift_fresh.default}


def value(node: Any) -> Any:
    """The fake tensor (or number) of the node's result; None if it has none."""
    return node.meta.get("val") if isinstance(node, Node) else node


def tensor(node: Any) -> torch.Tensor | None:
    """The node's fake tensor if its result is one dense tensor, else None."""
    val = value(node) if isinstance(node, Node) else None
    return val if isinstance(val, torch.Tensor) and val.layout is torch.strided else None


def is_known_equal(a: Any, b: Any) -> bool:
    """True if two sizes are equal for all values of the symbols in them."""
    return type(a) in (int, torch.SymInt) and bool(statically_known_true(a == b))


def have_same_sizes(a: Iterable[Any], b: Iterable[Any]) -> bool:
    a, b = list(a), list(b)
    return len(a) == len(b) and all(map(is_known_equal, a, b))


def draws_random_numbers(node: Node) -> bool:
    """True if a node's operator draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_in_order(tensor: torch.Tensor) -> bool:
    """True if the elements are in row-major order in memory.

    Eager draws random numbers in memory order.
    """
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not (statically_known_true(stride == expected) or statically_known_true(size == 1)):
            return False
        expected = expected * size
    return True


_BY_STORAGE = (
    aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default,
)  # fmt: skip
"""Operators whose offset counts from the beginning of the storage."""


def is_interchangeable(a: Any, b: Any) -> bool:
    """True if ``b`` can replace ``a``: equal dtype, device, sizes, strides, conj and neg bits; and
    equal offsets in memory, if the graph addresses elements by them."""
    x, y = tensor(a), tensor(b)
    return (
        x is not None
        and y is not None
        and x.dtype == y.dtype
        and x.device == y.device
        and x.is_conj() == y.is_conj()
        and x.is_neg() == y.is_neg()
        and have_same_sizes(x.shape, y.shape)
        and have_same_sizes(x.stride(), y.stride())
        and (is_known_equal(x.storage_offset(), y.storage_offset()) or not _reads_by_offset(a))
    )


def _reads_by_offset(node: Node) -> bool:
    return any(node.graph.find_nodes(op="call_function", target=t) for t in _BY_STORAGE)


def is_literal(node: Node, held: torch.Tensor) -> bool:
    """True if the attribute ``held`` that a node fetches is a small literal of the program: the
    graph takes a copy of it. Its elements are part of the graph's key in the disk cache."""
    return held.nbytes <= MAX_LITERAL_BYTES and all(
        user.target is aten.lift_fresh_copy.default for user in node.users
    )


def is_pure(node: Node) -> bool:
    """True for an ATen operator without random draws, side effects, mutations or data-dependent
    sizes."""
    target = node.target
    return (
        node.op == "call_function"
        and isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and torch.Tag.data_dependent_output not in target.tags
        and "unbacked_bindings" not in node.meta
        and not node.is_impure()
    )


def is_view(node: Node) -> bool:
    """True if the result shares memory with an argument."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return target in _HIDDEN_VIEWS or any(r.alias_info for r in target._schema.returns)


def consumers(node: Node) -> list[Node]:
    """The users of the node's memory, through views, that are no views themselves."""
    found = []
    for user in node.users:
        found += consumers(user) if is_view(user) else [user]
    return found


def argument(node: Node, number: int, name: str, default: Any = None) -> Any:
    """An argument of a call, positional or by keyword."""
    return node.args[number] if len(node.args) > number else node.kwargs.get(name, default)


def insert(graph: Graph, target: Any, *args: Any, like: Node, **kwargs: Any) -> Node:
    """Insert a call before ``like``, with its fake value, and the origin (stack trace, module,
    sequence number, captured node) of ``like``."""
    with graph.inserting_before(like):
        node = graph.call_function(target, args, kwargs)
    fake_args, fake_kwargs = pytree.tree_map_only(Node, value, (args, kwargs))
    mode = _fake_mode(like, fake_args)
    if mode is None:
        node.meta["val"] = target(*fake_args, **fake_kwargs)
    else:
        with mode:
            node.meta["val"] = target(*fake_args, **fake_kwargs)
    for key in ("stack_trace", "nn_module_stack", "seq_nr", "custom"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
    return node


def _fake_mode(like: Node, args: Any) -> Any:
    for leaf in pytree.tree_leaves((value(like), args)):
        if hasattr(leaf, "fake_mode"):
            return leaf.fake_mode
    return None


def replace(node: Node, new: Node) -> bool:
    """Replace ``node`` by ``new`` if they are interchangeable; True if replaced.

    The one without users is left to dead code elimination.
    """
    if not is_interchangeable(node, new):
        return False
    node.replace_all_uses_with(new)
    return True

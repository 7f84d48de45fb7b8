"""What every pass asks of an ATen graph: metadata, aliasing, and replacing one node by another.

A node may be replaced only by a value of the same dtype, sizes and strides, and only if nobody can
tell one tensor from two: the caller of the graph may write into what it gets back, and a node of
the graph may write into its input. :class:`Aliases` answers those questions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.operators import OpOverload

aten = torch.ops.aten

# The schema promises a new tensor, the operator gives a view.
_HIDDEN_VIEWS = {aten._unsafe_view.default, aten.lift.default, aten.lift_fresh.default}


def value(node: Any) -> Any:
    """The fake tensor (or number) that stands for the node's result; None if it has none."""
    return node.meta.get("val") if isinstance(node, Node) else node


def tensor(node: Any) -> torch.Tensor | None:
    """The node's fake tensor if its result is one dense tensor, else None."""
    val = value(node) if isinstance(node, Node) else None
    return val if isinstance(val, torch.Tensor) and val.layout is torch.strided else None


def is_known_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for all values of the symbols in them."""
    return type(a) in (int, torch.SymInt) and bool(statically_known_true(a == b))


def have_same_sizes(a: Iterable[Any], b: Iterable[Any]) -> bool:
    a, b = list(a), list(b)
    return len(a) == len(b) and all(map(is_known_equal, a, b))


def is_interchangeable(a: Any, b: Any) -> bool:
    """Whether ``b``'s tensor can stand where ``a``'s does: dtype, device, sizes and strides."""
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
    )


def is_pure(node: Node) -> bool:
    """An ATen operator without randomness, side effect, mutation or size known only at run time."""
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
    """Whether the result shares memory with an argument."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return target in _HIDDEN_VIEWS or any(r.alias_info for r in target._schema.returns)


def consumers(node: Node) -> list[Node]:
    """The users of the node's memory that are no views of it."""
    found = []
    for user in node.users:
        found += consumers(user) if is_view(user) else [user]
    return found


class Aliases:
    """Who shares memory with whom, by the node that made the memory; computed once per pass."""

    def __init__(self, graph: Graph) -> None:
        self.position: dict[Node, int] = {}
        self.roots: dict[Node, frozenset[Node]] = {}
        self.written: dict[Node, list[int]] = {}  # root -> positions of writes into its memory
        self.escaping: set[Node] = set()
        for number, node in enumerate(graph.nodes):
            self.position[node] = number
            self.roots[node] = self._roots(node)
            for argument in _written_arguments(node):
                for root in self.roots.get(argument, ()):
                    self.written.setdefault(root, []).append(number)
            if node.op == "output":
                for argument in node.all_input_nodes:
                    self.escaping |= self.roots[argument]

    def succeed(self, node: Node, new: Node) -> None:
        """``new``, which the graph may just have got, stands where ``node`` stood."""
        if new in self.position:
            return
        self.position[new] = self.position[node]
        self.roots[new] = self._roots(new)
        if new in self.roots[new]:  # its own memory, as the other one's was
            if node in self.written:
                self.written[new] = self.written[node]
            if node in self.escaping:
                self.escaping.add(new)

    def _roots(self, node: Node) -> frozenset[Node]:
        target = node.target
        if node.op != "call_function":
            return frozenset([node])
        if target is operator.getitem:
            return self.roots.get(node.args[0], frozenset([node]))
        if isinstance(target, OpOverload) and not is_view(node):
            return frozenset([node])
        # A view, or something unknown, which may return whatever it was given.
        shared = frozenset().union(*(self.roots[a] for a in node.all_input_nodes))
        return shared if is_view(node) and shared else shared | {node}

    def escapes(self, node: Node) -> bool:
        """Whether the caller gets, or somebody else keeps, memory the node's result lives in."""
        return any(
            root in self.escaping or root.op in ("placeholder", "get_attr")
            for root in self.roots[node]
        )

    def leaves(self, node: Node) -> bool:
        """Whether memory that the node's result lives in is returned."""
        return any(root in self.escaping for root in self.roots[node])

    def is_written(self, node: Node) -> bool:
        return any(root in self.written for root in self.roots[node])

    def unwritten_between(self, nodes: Iterable[Node], first: Node, last: Node) -> bool:
        """Whether reading any of ``nodes`` at ``first`` and at ``last`` gives the same."""
        low, high = self.position[first], self.position[last]
        return not any(
            low < at < high
            for node in nodes
            for root in self.roots[node]
            for at in self.written.get(root, ())
        )

    def can_share(self, node: Node, source: Node) -> bool:
        """Whether ``source`` may stand for ``node``, whose value it has.

        A view of ``source`` already shares its memory, so only an output of its own must stay.
        A new tensor must stay when either side is written, and when it is returned while the
        caller also has, or can get, the memory of ``source``.
        """
        if self.roots[node] == self.roots[source]:
            return not any(user.op == "output" for user in node.users)
        if self.is_written(node) or self.is_written(source):
            return False
        if self.leaves(node):
            if self.escapes(source):
                return False
            self.escaping |= self.roots[source]
        return True

    def share(self, node: Node, source: Node) -> None:
        """``source`` stands for ``node``: what was a view of the one is a view of the other."""
        gone, there = self.roots[node] - self.roots[source], self.roots[source]
        waiting = [node]
        while waiting:
            for user in waiting.pop().users:
                roots = self.roots.get(user, frozenset())
                if not gone.isdisjoint(roots):
                    self.roots[user] = (roots - gone) | there
                    waiting.append(user)


def _written_arguments(node: Node) -> list[Node]:
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        return []
    if isinstance(target, OpOverload):
        if not target._schema.is_mutable:
            return []
        written = []
        for number, formal in enumerate(target._schema.arguments):
            if formal.alias_info is not None and formal.alias_info.is_write:
                given = pytree.tree_leaves(argument(node, number, formal.name))
                written += [leaf for leaf in given if isinstance(leaf, Node)]
        return written
    if getattr(target, "__module__", "") in ("_operator", "math", "torch"):
        return []  # arithmetic on sizes
    return list(node.all_input_nodes)  # a higher-order operator: it may write into anything


def argument(node: Node, number: int, name: str, default: Any = None) -> Any:
    """An argument of a call, wherever it stands."""
    return node.args[number] if len(node.args) > number else node.kwargs.get(name, default)


def insert(graph: Graph, target: Any, *args: Any, like: Node, **kwargs: Any) -> Node:
    """Add a call before ``like``, its fake value computed and ``like``'s origin noted."""
    with graph.inserting_before(like):
        node = graph.call_function(target, args, kwargs)
    given_args, given_kwargs = pytree.tree_map_only(Node, value, (args, kwargs))
    mode = _fake_mode(like, given_args)
    if mode is None:
        node.meta["val"] = target(*given_args, **given_kwargs)
    else:
        with mode:
            node.meta["val"] = target(*given_args, **given_kwargs)
    for key in ("stack_trace", "nn_module_stack", "seq_nr"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
    return node


def _fake_mode(like: Node, given: Any) -> Any:
    for leaf in pytree.tree_leaves((value(like), given)):
        if hasattr(leaf, "fake_mode"):
            return leaf.fake_mode
    return None


def replace(node: Node, new: Node) -> bool:
    """Put ``new`` in the place of ``node`` if it can stand there, else leave all as it was.

    Either way the side that lost its users is left to dead code elimination.
    """
    if not is_interchangeable(node, new):
        return False
    node.replace_all_uses_with(new)
    return True

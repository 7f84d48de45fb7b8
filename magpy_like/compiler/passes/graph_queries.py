"""Queries that all passes share: a node's metadata, alias analysis, replacing a node by another.

A node may be replaced only by a value of the same dtype, sizes and strides, and only if one tensor
instead of two makes no difference: the caller of the graph may write into a result, and a node of
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

# The schema declares a new tensor, the operator returns a view.
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


def is_interchangeable(a: Any, b: Any) -> bool:
    """True if ``b`` can replace ``a``: equal dtype, device, sizes, strides, conj and neg bits."""
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


class Aliases:
    """Alias analysis of a graph, computed once per pass.

    A value's roots are the nodes that may have allocated its memory.
    """

    def __init__(self, graph: Graph) -> None:
        self.position: dict[Node, int] = {}
        self.roots: dict[Node, frozenset[Node]] = {}
        self.written: dict[Node, list[int]] = {}
        """Root -> positions of the nodes that write into its memory."""
        self.escaping: set[Node] = set()
        """Roots of the graph's results."""
        for number, node in enumerate(graph.nodes):
            self.position[node] = number
            self.roots[node] = self._roots(node)
            for argument in _written_arguments(node):
                for root in self.roots.get(argument, ()):
                    self.written.setdefault(root, []).append(number)
            if node.op == "output":
                for argument in node.all_input_nodes:
                    self.escaping |= self.roots[argument]

    def record_replacement(self, node: Node, new: Node) -> None:
        """Record that ``new``, which may be a new node, has replaced ``node``."""
        if new in self.position:
            return
        self.position[new] = self.position[node]
        self.roots[new] = self._roots(new)
        if new in self.roots[new]:  # it allocates its memory, as the node did
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
        # A view, or an unknown operator, which may return any of its arguments.
        shared = frozenset().union(*(self.roots[a] for a in node.all_input_nodes))
        return shared if is_view(node) and shared else shared | {node}

    def escapes(self, node: Node) -> bool:
        """True if the caller of the graph, or code outside, can reach the memory of the result."""
        return any(
            root in self.escaping or root.op in ("placeholder", "get_attr")
            for root in self.roots[node]
        )

    def is_returned(self, node: Node) -> bool:
        """True if the memory of the node's result is returned from the graph."""
        return any(root in self.escaping for root in self.roots[node])

    def is_written(self, node: Node) -> bool:
        return any(root in self.written for root in self.roots[node])

    def is_unwritten_between(self, nodes: Iterable[Node], first: Node, last: Node) -> bool:
        """True if no node between ``first`` and ``last`` writes to the memory of ``nodes``."""
        low, high = self.position[first], self.position[last]
        return not any(
            low < position < high
            for node in nodes
            for root in self.roots[node]
            for position in self.written.get(root, ())
        )

    def can_share(self, node: Node, source: Node) -> bool:
        """True if ``source``, which has the value of ``node``, may replace it.

        A view of ``source`` already shares its memory: it must stay only if it is an output itself.
        A new tensor must stay if either memory is written to, or if it is returned and the caller
        also holds, or can reach, the memory of ``source``.
        """
        if self.roots[node] == self.roots[source]:
            return not any(user.op == "output" for user in node.users)
        if self.is_written(node) or self.is_written(source):
            return False
        if self.is_returned(node):
            if self.escapes(source):
                return False
            self.escaping |= self.roots[source]
        return True

    def record_sharing(self, node: Node, source: Node) -> None:
        """Record that ``source`` replaces ``node``: views of the one become views of the other."""
        old, new = self.roots[node] - self.roots[source], self.roots[source]
        waiting = [node]
        while waiting:
            for user in waiting.pop().users:
                roots = self.roots.get(user, frozenset())
                if not old.isdisjoint(roots):
                    self.roots[user] = (roots - old) | new
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
                leaves = pytree.tree_leaves(argument(node, number, formal.name))
                written += [leaf for leaf in leaves if isinstance(leaf, Node)]
        return written
    if getattr(target, "__module__", "") in ("_operator", "math", "torch"):
        return []  # arithmetic on sizes
    return list(node.all_input_nodes)  # a higher-order operator: it may write to any argument


def argument(node: Node, number: int, name: str, default: Any = None) -> Any:
    """An argument of a call, positional or by keyword."""
    return node.args[number] if len(node.args) > number else node.kwargs.get(name, default)


def insert(graph: Graph, target: Any, *args: Any, like: Node, **kwargs: Any) -> Node:
    """Insert a call before ``like``, with its fake value, and the origin (stack trace, module,
    sequence number) of ``like``."""
    with graph.inserting_before(like):
        node = graph.call_function(target, args, kwargs)
    fake_args, fake_kwargs = pytree.tree_map_only(Node, value, (args, kwargs))
    mode = _fake_mode(like, fake_args)
    if mode is None:
        node.meta["val"] = target(*fake_args, **fake_kwargs)
    else:
        with mode:
            node.meta["val"] = target(*fake_args, **fake_kwargs)
    for key in ("stack_trace", "nn_module_stack", "seq_nr"):
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

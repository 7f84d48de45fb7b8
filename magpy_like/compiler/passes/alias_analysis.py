"""Alias analysis: nodes of a graph whose results may share memory.

One tensor may take the place of two only if that makes no difference: the caller of the graph may
write into a result, and a node of the graph may write into its input.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

from torch.fx import Graph, Node

from magpy_like.compiler.passes.graph_queries import argument, is_view
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.operators import OpOverload


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
            for written in _written_arguments(node):
                for root in self.roots.get(written, ()):
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

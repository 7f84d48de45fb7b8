"""Scatters that write an input of the graph in place.

A cache that a program updates with ``cache.index_copy_(…)`` is, in a functional graph, a copy of
the whole cache with some rows replaced, which a last ``copy_`` writes back. Where nothing reads the
old contents afterwards, the rows are stored in the input itself, and neither copy is made.

Only on GPUs: there an index out of bounds ends the process. On a CPU it raises, and must leave the
input as eager mode does.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from magpy_like.compiler.passes.alias_analysis import Aliases

aten = torch.ops.aten

DEVICES = frozenset({"cuda"})

_SCATTERS = {
    aten.index_copy.default, aten.index_put.default, aten._unsafe_index_put.default,
    aten.index_add.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default,
}  # fmt: skip


def find_scatters_in_place(graph: fx.Graph) -> set[fx.Node]:
    """The scatters whose result may be stored in their first argument, an input of the graph.

    A chain of them, each a scatter into the result of the one before, begins at the input and ends
    at the ``copy_`` to it.
    """
    order = {node: k for k, node in enumerate(graph.nodes)}
    sharing = _Sharing(graph)
    writes = [node for node in graph.nodes if node.target is aten.copy_.default]
    found: set[fx.Node] = set()
    for write in writes:
        target, result = write.args[:2]
        chain = [*_chain(result)]
        begins = chain and chain[-1].args[0] is target and target.op == "placeholder"
        if not begins or sum(other.args[0] is target for other in writes) > 1:
            continue
        if not _may_replace(target, result):
            continue
        steps = ((scatter, scatter.args[0]) for scatter in chain)
        readers = ((s, user) for s, old in steps for user in sharing.readers(old))
        late = (user for s, user in readers if user not in (s, write) and order[user] > order[s])
        if next(late, None) is None and not sharing.is_returned(result):
            found.update(chain)
    return found


def _chain(node: fx.Node) -> Iterator[fx.Node]:
    while isinstance(node, fx.Node) and node.target in _SCATTERS:
        yield node
        node = node.args[0]


def _may_replace(target: fx.Node, result: fx.Node) -> bool:
    old, new = target.meta["val"], result.meta["val"]
    return old.device.type in DEVICES and (old.dtype, old.shape) == (new.dtype, new.shape)


class _Sharing:
    """The nodes of a graph by the memory that they may share.

    The storages of their fake results would not tell: a pass that replaces a node gives it a new
    one, and leaves its views with the old.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._aliases = Aliases(graph)
        self._nodes: dict[fx.Node, list[fx.Node]] = {}  # root -> the nodes that may share it
        for node, roots in self._aliases.roots.items():
            for root in roots:
                self._nodes.setdefault(root, []).append(node)

    def readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """The users of a tensor and of its views."""
        for root in self._aliases.roots[node]:
            for alias in self._nodes[root]:
                yield from alias.users

    def is_returned(self, node: fx.Node) -> bool:
        return any(user.op == "output" for user in self.readers(node))

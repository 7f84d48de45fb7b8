"""Which variable is it? The RefGraph's node of each, and the way on which the program got there.

A variable is in one of three states: it was there when the region was entered, and then it has one
node from its first meeting on; the region has made it; or nobody has seen it made, and nothing must
be said about it. Plain values have no identity: they are told apart by where they come from.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.monitor.objects.containers import CONTAINERS, is_told_by_identity, plain_key
from magpy_like.monitor.objects.finalizers import is_noticed
from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, ByIdentity, Fact, RefGraph, Relation, ShadowNode
from magpy_like.refgraph.plain_values import HEAP_TYPE, MonitorWeakRef, is_plain
from magpy_like.split_points import unknown_value_split
from magpy_like.split_reasons import SplitReason


class Variables:
    """What a run has to do with, and where it is from."""

    def __init__(self) -> None:
        self.refs = RefGraph()
        self.operators = OperatorGraph()
        self._paths: dict[int, Path] = {}
        self._roots: dict[Relation, Any] = {}
        self._born: dict[int, Callable[[], Any]] = {}

    def node(self, value: Any) -> ShadowNode | None:
        """The node of a variable that was there when the region was entered."""
        if self.operators.lists:
            self.operators.inspect_list(value)
        found = self.refs.get_node_by_var(value)
        return found if found is not None and found.existed else None

    def constant(self, value: Any) -> ShadowNode:
        """The node of an object that is what it is: a class, a module, a function's globals."""
        node = self.refs.get_node_by_var(value)
        if node is None:
            relation = Relation(RelationKind.CONSTANT, id(value))
            node = self.refs.read(self.refs.external, relation, value)
            self._paths[node.node_id] = (relation,)
            self._roots[relation] = value
            node.facts.add(Fact.IDENTITY)
        return node

    def path(self, node: ShadowNode) -> Path:
        """The way on which the program first got to a variable."""
        return self._paths.get(node.node_id, ())

    def root(self, relation: Relation) -> Any:
        """The object that is the same at every call and that a way begins at, or None."""
        return self._roots.get(relation)

    def place(self, owner: ShadowNode, relation: Relation) -> Path:
        """A place outside, as far as it can be told from one run to the next: by the way from the
        arguments, or by the object that is there at every call."""
        path = self.path(owner)
        if owner.node_id == EXTERNAL or (path and path[0].kind is RelationKind.LOCAL):
            return (*path, relation)
        return (Relation(RelationKind.CONSTANT, id(owner.variable)), relation)

    def key(self, key: Any) -> Any:
        """How a relation names a dictionary's key: by its value, or by which variable it is.

        Raises:
            Split: a guard could not look for it again.
        """
        if not is_told_by_identity(key):
            return plain_key(key)
        node, is_new = self.node(key), self.is_new(key)
        if node is None and not is_new:
            plain_key(key)
        with contextlib.suppress(TypeError):
            return ByIdentity(key, None if node is None else node.node_id, is_new=is_new)
        raise unknown_value_split(
            key, SplitReason.UNGUARDABLE_KEY, f"looks up a {type(key).__qualname__} as a key"
        )

    def is_new(self, value: Any) -> bool:
        """Whether the program has made an object, or an operator a tensor."""
        if is_instance(value, torch.Tensor):
            return self.node(value) is None and self.operators.node_of(value) is not None
        return self.is_born(value)

    def bear(self, value: Any) -> None:
        """``value`` was created inside the region."""
        if is_plain(value) or self.refs.get_node_by_var(value) is not None:
            return
        if is_instance(value, BaseException) or _is_native_iterator(value):
            return  # would keep alive what it goes through, or the frames that it came through
        try:
            self._born[id(value)] = MonitorWeakRef(value)
        except TypeError:
            if not is_instance(value, CONTAINERS) and not is_noticed(value):
                self._born[id(value)] = functools.partial(_identity, value)

    def is_born(self, value: Any) -> bool:
        held = self._born.get(id(value))
        return held is not None and held() is value


def _is_native_iterator(value: Any) -> bool:
    return is_instance(value, Iterator) and not type(value).__flags__ & HEAP_TYPE


def _identity(value: Any) -> Any:
    return value

"""The RefGraph's variables: the node of each, and its access path.

A variable is external, new, or of unknown origin. An external variable has one node, from the
program's first reference to it. A new one was created by the region. The monitor has not seen the
creation of the third kind and assumes nothing about it. Plain values have no identity: the
locations from which they are read distinguish them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from magpy_like.annotation.schema import RelationKind
from magpy_like.monitor.objects.containers import CONTAINERS, is_compared_by_identity, plain_key
from magpy_like.monitor.objects.finalizers import is_observed
from magpy_like.monitor.operator_graph.operator_graph import OperatorGraph
from magpy_like.monitor.symbolic.variation import Path
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, ByIdentity, Fact, RefGraph, Relation, ShadowNode
from magpy_like.refgraph.plain_values import MonitorWeakRef, is_mutable_class, is_plain
from magpy_like.split_points import unknown_value_split
from magpy_like.split_reasons import SplitReason


class Variables:
    """The nodes and access paths of external variables, and the new objects."""

    def __init__(self, refs: RefGraph, operators: OperatorGraph) -> None:
        self._refs, self._operators = refs, operators
        self._paths: dict[int, Path] = {}
        self._roots: dict[Relation, Any] = {}
        self._new: dict[int, Callable[[], Any]] = {}

    def node(self, value: Any) -> ShadowNode | None:
        """The node of an external variable; None for any other."""
        if self._operators.lists:
            self._operators.inspect_list(value)
        found = self._refs.get_node_by_var(value)
        return found if found is not None and found.existed else None

    def constant(self, value: Any) -> ShadowNode:
        """The node of an object known by its identity: a class, a module, a function's globals."""
        node = self._refs.get_node_by_var(value)
        if node is None:
            relation = Relation(RelationKind.CONSTANT, id(value))
            node = self._refs.read(self._refs.external, relation, value)
            self._paths[node.node_id] = (relation,)
            self._roots[relation] = value
            node.facts.add(Fact.IDENTITY)
        return node

    def path(self, node: ShadowNode) -> Path:
        """The access path by which the program first reached a variable."""
        return self._paths.get(node.node_id, ())

    def add_path(self, node: ShadowNode, owner: ShadowNode, relation: Relation) -> None:
        """Note that ``relation`` leads from ``owner`` to ``node``, if no path to it is known."""
        self._paths.setdefault(node.node_id, (*self.path(owner), relation))

    def release(self) -> None:
        """Drop the objects of the program that are held here."""
        self._new, self._roots = {}, {}

    def root(self, relation: Relation) -> Any:
        """The constant object at which an access path begins; None for any other relation."""
        return self._roots.get(relation)

    def location(self, owner: ShadowNode, relation: Relation) -> Path:
        """The name of an external location that is valid across runs: its access path from the
        arguments or, for any other owner, the owner as a constant and the relation."""
        path = self.path(owner)
        if owner.node_id == EXTERNAL or (path and path[0].kind is RelationKind.LOCAL):
            return (*path, relation)
        return (Relation(RelationKind.CONSTANT, id(owner.variable)), relation)

    def key(self, key: Any) -> Any:
        """The key of a relation for a dictionary key: its value, or its identity.

        Raises:
            Split: a guard could not find the key again.
        """
        if not is_compared_by_identity(key):
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
        """True if the program created the object or, for a tensor, an operator of the graph did."""
        if is_instance(value, torch.Tensor):
            return self.node(value) is None and self._operators.nodes.node_of(value) is not None
        return self.is_new_object(value)

    def add_new(self, value: Any) -> None:
        """Note that the region created ``value``."""
        if is_plain(value) or self._refs.get_node_by_var(value) is not None:
            return
        if is_instance(value, BaseException) or _is_native_iterator(value):
            return  # would keep alive the iterated container, or the exception's frames
        try:
            self._new[id(value)] = MonitorWeakRef(value)
        except TypeError:
            if not is_instance(value, CONTAINERS) and not is_observed(value):
                self._new[id(value)] = functools.partial(_identity, value)

    def is_new_object(self, value: Any) -> bool:
        held = self._new.get(id(value))
        return held is not None and held() is value


def _is_native_iterator(value: Any) -> bool:
    return is_instance(value, Iterator) and not is_mutable_class(type(value))


def _identity(value: Any) -> Any:
    return value

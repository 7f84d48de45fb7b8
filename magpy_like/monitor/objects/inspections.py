"""Looking into variables from outside: each look adds what its outcome depends on, and no more.

A look at something that the region has made relies on nothing, but on what in it was there before.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch

from magpy_like.annotation.schema import RelationKind, ValueRead
from magpy_like.monitor.objects.containers import CONTAINERS, any_hashes_in_python, elements
from magpy_like.monitor.objects.outside_reads import OutsideReads
from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.symbolic.variation import Variation
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, RefGraph, Relation, ShadowNode
from magpy_like.refgraph.plain_values import (
    VersionCheck,
    is_identity,
    is_interned,
    is_plain,
    proxied_mapping,
)
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason


class Inspections:
    """What operations find out about variables from outside."""

    def __init__(
        self, refs: RefGraph, variables: Variables, reads: OutsideReads, varying: Variation
    ) -> None:
        self._refs, self._variables, self._reads, self._varying = refs, variables, reads, varying
        self._compares_in_python: dict[int, bool] = {}
        self.distinct: set[tuple[int, int]] = set()
        """Pairs of nodes that the program found to be different objects."""
        self.compared: dict[int, None] = {}
        """Objects that native code has compared with others, as it does by identity."""
        self.unchanged: list[VersionCheck] = []
        """Tensors that must keep their data, as one may be another."""

    def visit(self, value: Any, read: ValueRead) -> None:
        """An operation looked at ``value`` to the depth ``read``."""
        if read is ValueRead.NONE or is_plain(value) or is_instance(value, torch.Tensor):
            return
        if is_instance(value, types.MappingProxyType) and read is not ValueRead.TYPE:
            value = self.unwrap_proxy(value)
        node = self._variables.node(value)
        if node is None:
            if read in (ValueRead.ALL, ValueRead.PAIRS) and is_instance(value, CONTAINERS):
                deeper = read if read is ValueRead.ALL else ValueRead.ELEMENTS
                for item in elements(value):
                    if not is_plain(item):
                        self.visit(item, deeper)
            return
        if read is ValueRead.LENGTH:
            self.inspect_length(node)
        elif read is ValueRead.KEYS:
            self.inspect_keys(node)
        elif read in (ValueRead.ELEMENTS, ValueRead.PAIRS, ValueRead.ALL):
            self._reads.record_contents(node)
            if read is not ValueRead.ELEMENTS and is_instance(value, CONTAINERS):
                deeper = read if read is ValueRead.ALL else ValueRead.ELEMENTS
                for item in elements(value):
                    if not is_plain(item):
                        self.visit(item, deeper)

    def unwrap_proxy(self, value: Any) -> Any:
        """The mapping that a mapping proxy shows, or any other value itself."""
        if not is_instance(value, types.MappingProxyType):
            return value
        mapping, node = proxied_mapping(value), self._variables.node(value)
        if node is not None:
            self._reads.record(node, Relation(RelationKind.MAPPING), mapping)
        return mapping

    def inspect_length(self, node: ShadowNode) -> None:
        self._reads.check_unchanged_inside(node)
        if not self._has_first_length(node):
            self._reads.record_contents(node)
        elif is_instance(node.variable, CONTAINERS) or not is_instance(
            lookup_in_type(node.type, "__len__"), types.FunctionType
        ):  # others answer in Python
            node.facts.add(Fact.LENGTH)

    def _has_first_length(self, node: ShadowNode) -> bool:
        """Whether a container holds as many elements as it did: a list may have others by now."""
        replaced = is_instance(node.variable, list) and not (node.replays or node.rewritten)
        return node.contents is None or replaced

    def inspect_truth(self, value: Any) -> None:
        """The program asked whether a container holds anything."""
        node = self._variables.node(value)
        if node is None:
            return
        self._reads.check_unchanged_inside(node)
        if self.is_added(node, -1):
            return
        if self._has_first_length(node):
            node.facts.add(Fact.TRUTH if elements(value) else Fact.LENGTH)
        else:
            self._reads.record_contents(node)

    def counts_vary(self, node: ShadowNode) -> bool:
        """Whether a list from outside is likely to be another one at every call: it has had other
        lengths, or, of a deque, other numbers."""
        if self._variables.path(node) in self._varying.counts:
            return True
        return node.type is collections.deque and self.items_vary(node.variable)

    def items_vary(self, container: Any) -> bool:
        """Whether a list or deque from outside has had other numbers at other calls."""
        node = self._variables.node(container)
        if node is None or not self._varying.numbers:
            return False
        places = (Relation(RelationKind.ITEM, i) for i in range(len(container)))
        return any(
            self._variables.location(node, place) in self._varying.numbers for place in places
        )

    def is_added(self, node: ShadowNode, key: int) -> bool:
        """Whether the program itself has put there what a list has at a negative index."""
        self._reads.check_unchanged_inside(node)
        known = self._reads.list_values.get(node.node_id)
        return known is not None and -known.added <= key < 0

    def length_varies(self, value: Any) -> bool:
        """Whether a variable is a list from outside that has had other lengths at other calls."""
        if not self._varying.lengths or type(value) is not list:
            return False
        node = self._variables.node(value)
        return node is not None and self._variables.path(node) in self._varying.lengths

    def inspect_keys(self, node: ShadowNode) -> None:
        self._reads.check_unchanged_inside(node)
        if node.contents is not None or not is_instance(node.variable, dict):
            self._reads.record_contents(node)
        else:
            if self.compares_in_python(node):
                self._reads.record_contents(node)
            node.facts.add(Fact.KEYS)

    def key_in(self, node: ShadowNode, key: Any) -> Any:
        """How a relation names a key that the program looks up in a dictionary, or puts there.

        Raises:
            Split: a guard or mock would run code of the program's to find it, or could not.
        """
        if self.compares_in_python(node):
            raise Split(
                SplitReason.UNGUARDABLE_KEY,
                "looks up a key among keys with an __eq__ or __hash__ in Python",
            )
        return self._variables.key(key)

    def compares_in_python(self, node: ShadowNode) -> bool:
        """Whether a dictionary or set from outside runs code of what it holds to find anything."""
        known = self._compares_in_python.get(node.node_id)
        if known is None:
            known = self._compares_in_python[node.node_id] = any_hashes_in_python(node.variable)
        return known

    def record_comparison(self, value: Any, seen: frozenset[int] = frozenset()) -> None:
        """Native code compares ``value``, or what it holds, with other objects or hashes it.

        By default objects are equal to themselves alone, so those that differ must differ again.
        """
        if is_plain(value) or is_identity(value) or id(value) in seen:
            return
        if is_instance(value, torch.Tensor) and any(s.tensor() is value for s in self.unchanged):
            raise Split(
                SplitReason.OBJECT_IDENTITY, "tests the identity of a tensor that a branch returns"
            )
        node = self._variables.node(value)
        if node is not None:
            self.compared[node.node_id] = None
        if is_instance(value, CONTAINERS):
            seen |= {id(value)}
            for item in elements(value):
                self.record_comparison(item, seen)
            for key in dict.keys(value) if is_instance(value, dict) else ():
                self.record_comparison(key, seen)

    def rely_on_identity(self, *values: Any) -> None:
        """Which objects these plain values are makes a difference: those from outside must be the
        very same again, wherever they were found, as there may be equal ones."""
        told = [value for value in values if not is_interned(value)]
        if not told:
            return
        for node in self._refs:
            if node.plain and node.existed and any(node.variable is value for value in told):
                node.facts.update((Fact.VALUE, Fact.IDENTITY))
                self._reads.just_read.discard(node.node_id)

    def has_changed(self, since: int = 0) -> bool:
        """Whether one of the tensors that must keep their data was changed in place."""
        return any(check.has_changed() for check in self.unchanged[since:])

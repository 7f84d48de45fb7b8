"""Inspections of external variables: each adds exactly the facts on which its outcome depends.

An inspection of a new object adds facts of the external objects in it only.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable
from typing import Any

import torch

from magpy_like.annotation.schema import RelationKind, ValueRead
from magpy_like.monitor.objects.containers import (
    CONTAINERS,
    DICT_VIEWS,
    any_hashes_in_python,
    arguments_of,
    elements,
)
from magpy_like.monitor.objects.external_reads import ExternalReads
from magpy_like.monitor.objects.iterators import contents_of, yields_from_python
from magpy_like.monitor.objects.variables import Variables
from magpy_like.monitor.symbolic.variation import Variation
from magpy_like.native import instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, RefGraph, Relation, ShadowNode
from magpy_like.refgraph.plain_values import (
    VersionCheck,
    is_identity,
    is_interned,
    is_plain,
    proxied_mapping,
    storage_of,
)
from magpy_like.split_points import BranchNotMergeable, Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor


class Inspections:
    """Partial reads of external variables: length, keys, truth, comparisons."""

    def __init__(
        self, refs: RefGraph, variables: Variables, reads: ExternalReads, varying: Variation
    ) -> None:
        self._refs, self._variables, self._reads, self._varying = refs, variables, reads, varying
        self._compares_in_python: dict[int, bool] = {}
        self.distinct: set[tuple[int, int]] = set()
        """Pairs of nodes that the program has tested to be distinct objects."""
        self.compared: dict[int, None] = {}
        """Nodes of objects that native code has compared with others, at least by identity."""
        self.compares_yielded = False
        """Whether native code has compared elements that functions in Python compute for it."""
        self.compares_keys = False
        """Whether an iterator compares what a function in Python returns for each element."""
        self.possible_aliases: list[VersionCheck] = []
        """Version checks of tensors that must keep their data: see ``note_possible_aliases``."""

    def visit(self, value: Any, read: ValueRead) -> None:
        """Record that an operation inspects ``value`` to the depth ``read``."""
        if read is ValueRead.NONE or is_plain(value) or is_instance(value, torch.Tensor):
            return
        if is_instance(value, types.MappingProxyType) and read is not ValueRead.TYPE:
            value = self.unwrap_proxy(value)
        elif is_instance(value, DICT_VIEWS) and read is ValueRead.LENGTH:
            value = self.shown_mapping(value)
        node = self._variables.node(value)
        if node is None:
            if read in (ValueRead.ALL, ValueRead.PAIRS):
                self._visit_parts(value, read)
            return
        if read is ValueRead.LENGTH:
            self.inspect_length(node)
        elif read is ValueRead.KEYS:
            self.inspect_keys(node)
        elif read in (ValueRead.ELEMENTS, ValueRead.PAIRS, ValueRead.ALL):
            self._reads.record_contents(node)
            if read is not ValueRead.ELEMENTS:
                self._visit_parts(value, read)

    def _visit_parts(self, value: Any, read: ValueRead) -> None:
        """Record that an operation inspects the elements of a container, or the arguments of an
        exception."""
        if is_instance(value, CONTAINERS):
            parts = elements(value)
        else:
            parts = [arguments_of(value)] if is_instance(value, BaseException) else []
        deeper = read if read is ValueRead.ALL else ValueRead.ELEMENTS
        for part in parts:
            if not is_plain(part):
                self.visit(part, deeper)

    def unwrap_proxy(self, value: Any) -> Any:
        """The mapping that a mapping proxy shows; any other value itself."""
        return self.shown_mapping(value) if is_instance(value, types.MappingProxyType) else value

    def shown_mapping(self, value: Any) -> Any:
        """The mapping that a mapping proxy or a view of a dictionary shows."""
        mapping, node = proxied_mapping(value), self._variables.node(value)
        if node is not None:
            self._reads.record(node, Relation(RelationKind.MAPPING), mapping)
        return mapping

    def inspect_length(self, node: ShadowNode) -> None:
        """Record a read of the number of a container's elements."""
        self._reads.check_extent(node)
        if not self._has_first_length(node):
            self._reads.record_contents(node)
        elif is_instance(node.variable, CONTAINERS) or not is_instance(
            lookup_in_type(node.type, "__len__"), types.FunctionType
        ):  # a __len__ in Python is followed
            node.facts.add(Fact.LENGTH)

    def _has_first_length(self, node: ShadowNode) -> bool:
        """True if a container has as many elements as at entry; the elements may differ."""
        replaced = is_instance(node.variable, list) and not (node.replays or node.rewritten)
        return node.contents is None or replaced

    def inspect_truth(self, value: Any) -> None:
        """Record a test of whether a container has elements."""
        node = self._variables.node(value)
        if node is None:
            return
        self._reads.check_extent(node)
        if self.is_added(node, -1):
            return
        if self._has_first_length(node):
            node.facts.add(Fact.TRUTH if elements(value) else Fact.LENGTH)
        else:
            self._reads.record_contents(node)

    def counts_vary(self, node: ShadowNode) -> bool:
        """True if an external list or deque probably differs at every call: its length has varied
        or, for a deque, its numbers have."""
        if self._variables.path(node) in self._varying.counts:
            return True
        return node.type is collections.deque and self.items_vary(node.variable)

    def items_vary(self, container: Any) -> bool:
        """True if the numbers in an external list or deque have varied between calls."""
        node = self._variables.node(container)
        if node is None or not self._varying.numbers:
            return False
        relations = (Relation(RelationKind.ITEM, i) for i in range(len(container)))
        return any(
            self._variables.location(node, relation) in self._varying.numbers
            for relation in relations
        )

    def is_added(self, node: ShadowNode, key: int) -> bool:
        """True if the program itself has added the element at a negative index of a list."""
        self._reads.check_unchanged_inside(node)
        lifted = self._reads.list_values.get(node.node_id)
        return lifted is not None and -lifted.added <= key < 0

    def length_varies(self, value: Any) -> bool:
        """True for an external list whose length has varied between calls."""
        if not self._varying.lengths or type(value) is not list:
            return False
        node = self._variables.node(value)
        return node is not None and self._variables.path(node) in self._varying.lengths

    def inspect_keys(self, node: ShadowNode) -> None:
        """Record a read of the keys of a dictionary."""
        self._reads.check_extent(node)
        if node.contents is not None or not is_instance(node.variable, dict):
            self._reads.record_contents(node)
        else:
            if self.compares_in_python(node):
                self._reads.record_contents(node)
            node.facts.add(Fact.KEYS)

    def key_in(self, node: ShadowNode, key: Any) -> Any:
        """The key of a relation for a dictionary key that the program looks up or stores.

        Raises:
            Split: a guard or mock cannot look up the key without running code of the program.
        """
        if self.compares_in_python(node):
            raise Split(
                SplitReason.UNGUARDABLE_KEY,
                "looks up a key among keys with an __eq__ or __hash__ in Python",
            )
        return self._variables.key(key)

    def compares_in_python(self, node: ShadowNode) -> bool:
        """True if a look-up in an external dictionary or set runs Python code of its keys."""
        result = self._compares_in_python.get(node.node_id)
        if result is None:
            result = self._compares_in_python[node.node_id] = any_hashes_in_python(node.variable)
        return result

    def record_comparison(self, value: Any, seen: frozenset[int] = frozenset()) -> None:
        """Record that native code compares or hashes ``value`` or its contents.

        By default an object equals only itself, so the guard checks that distinct objects are
        distinct. Only contents that have been read are known, so their read comes first.
        """
        if is_plain(value) or is_identity(value) or id(value) in seen:
            return
        if is_instance(value, torch.Tensor):
            self.check_no_alias(value, "tests the identity of")
        node = self._variables.node(value)
        if node is not None:
            self.compared[node.node_id] = None
        seen |= {id(value)}
        for item in contents_of(value):
            if is_instance(item, CONTAINERS) and not is_instance(value, CONTAINERS):
                self.visit(item, ValueRead.ALL)  # the source of an iterator's elements
            self.record_comparison(item, seen)
        for key in dict.keys(value) if is_instance(value, dict) else ():
            self.record_comparison(key, seen)
        self.compares_yielded |= yields_from_python(value)

    def record_hash(self, key: Any) -> None:
        """Record that native code reads, hashes or compares a key or an element."""
        if not is_plain(key):
            if is_instance(key, CONTAINERS):
                self.visit(key, ValueRead.ALL)
            self.record_comparison(key)

    def note_possible_aliases(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note a result of a branch or loop, and the tensors that it may be, as aliases of each
        other: they must keep their data and their objects.

        Raises:
            Split: a tensor that the program has created has attributes, which a result that is
                another one lacks.
        """
        for tensor in tensors:
            is_own = self._variables.node(tensor) is None and not is_instance(tensor, FakeTensor)
            if is_own and instance_dict(tensor):
                raise BranchNotMergeable("a branch or loop may return a tensor with attributes")
            self.possible_aliases.append(VersionCheck(tensor))

    def check_no_alias(self, tensor: torch.Tensor, action: str) -> None:
        """Check that the program may read or change more of a tensor than its data.

        A result of a branch or loop is one of several tensors, according to the data. Their
        metadata is alike, but their Python objects, views and histories are their own.

        Raises:
            Split: it may be such a result, or a tensor that such a result may be.
        """
        if any(check.tensor() is tensor for check in self.possible_aliases):
            raise Split(SplitReason.OBJECT_IDENTITY, f"{action} a tensor that a branch may return")

    def check_write(
        self,
        tensor: torch.Tensor,
        detail: str = "changes the memory of a tensor that a branch may return",
    ) -> None:
        """Check that the program may write to the memory of a tensor.

        After a write, autograd refuses some views of the memory, such as the results of ``unbind``,
        and names the function that has made the view. By then the program must hold its own tensor,
        not a substitute, which is a view of it: see ``substitute_tensors``.

        Raises:
            Split: a result of a branch or loop, or a tensor that it may be, has the same memory.
        """
        storage = storage_of(tensor)
        for check in self.possible_aliases:
            alias = check.tensor()
            if alias is tensor or (alias is not None and storage_of(alias) == storage != 0):
                raise Split(SplitReason.OBJECT_IDENTITY, detail)

    def check_class_is_fixed(self, tensor: torch.Tensor) -> None:
        """Check that the program may test the class of a tensor.

        Raises:
            Split: a branch may return it or, instead, a parameter.
        """
        kept = (check.tensor() for check in self.possible_aliases)
        if any(is_instance(one, torch.nn.Parameter) for one in kept):
            self.check_no_alias(tensor, "tests the class of")

    def rely_on_identity(self, *values: Any) -> None:
        """Guard the identity of external plain values: equal ones may be distinct objects."""
        distinct = [value for value in values if not is_interned(value)]
        if not distinct:
            return
        for node in self._refs:
            if node.plain and node.existed and any(node.variable is value for value in distinct):
                node.facts.update((Fact.VALUE, Fact.IDENTITY))
                self._reads.just_read.discard(node.node_id)

    def has_changed(self, since: int = 0) -> bool:
        """True if one of the ``possible_aliases``, from position ``since``, was changed in
        place."""
        return any(check.has_changed() for check in self.possible_aliases[since:])

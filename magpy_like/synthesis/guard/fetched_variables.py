"""Conditions on fetched variables: the variables of a call, along the program's access paths.

Each is fetched once. Its conditions are checked before the rest of an access path is followed,
which presupposes its type.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.containers import CONTAINERS, SCALARS, elements, length_of
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import ANY_VALUE, TensorCheck
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, Fact, Relation, ShadowNode
from magpy_like.synthesis.generated_source import describe_key
from magpy_like.synthesis.guard.conditions import INDEXED_TYPES, Aspect, Condition, Kind
from magpy_like.synthesis.guard.fixed_objects import FixedObjects
from magpy_like.synthesis.guard.guard_checks import (
    ordered_keys,
    same_array,
    same_keys,
    same_metadata,
    same_scalar,
)
from magpy_like.synthesis.guard.guard_writer import REPLACED_TENSOR, GuardWriter, describe_tensor

_EXTENTS = {Fact.LENGTH, Fact.KEYS, Fact.VALUE}
"""Facts that imply whether a container is empty."""


class FetchedVariables:
    """Fetches the variables of a call and writes the conditions on them."""

    def __init__(
        self, writer: GuardWriter, fixed: FixedObjects, functions: frozenset[int] | None
    ) -> None:
        """``functions`` are the positions of arguments that are known to run the same code."""
        self._writer, self._fixed = writer, fixed
        self._rec, self._source = writer.rec, writer.source
        self._functions = functions
        self.dynamic: list[tuple[Condition, ShadowNode]] = []
        """The conditions on tensors with dynamic dimensions."""

    def fetch(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        """Fetch a variable along an edge, or check it if it is a plain value."""
        if node.plain and Fact.VALUE in node.facts:
            self._value(parent, relation, node)
            return
        writer = self._writer
        name = self._source.fresh("v")
        self._source.emit(f"{name} = {writer.access(parent, relation)}")
        if relation.kind is RelationKind.ITERATION:
            self._source.names["NOTHING"] = NOTHING
            description = f"{writer.label(parent)} is not exhausted"
            writer.check(Kind.NOT_EXHAUSTED, f"{name} is not NOTHING", description)
        writer.variables[node.node_id] = name
        self._contents(name, node)

    def alias(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        """Check that a further edge leads to the same variable."""
        if node.plain:
            self._value(parent, relation, node)
            return
        writer = self._writer
        writer.check(
            Kind.ALIAS,
            f"{writer.access(parent, relation)} is {writer.name(node)}",
            f"{writer.label_of(parent, relation, node)} is {writer.label(node)}",
        )

    def _value(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        value, writer = node.first.value, self._writer
        is_member = relation.kind is RelationKind.MEMBERSHIP
        if parent.node_id != EXTERNAL and writer.guarded.is_fixed_location(parent, relation):
            if is_member:
                self._fixed.location(Kind.FIXED_MEMBER, parent, relation, ANY_VALUE, equal=False)
                return
            self._fixed.location(Kind.FIXED_VALUE, parent, relation, value, equal=True)
            writer.note(f"{writer.label_of(parent, relation, node)} == {value!r}")
            return
        label = writer.label_of(parent, relation, node)
        if is_member:
            writer.check(
                Kind.MEMBER,
                f"dict.__contains__({writer.name(parent)}, {writer.key(relation.key)})",
                f"{relation.key!r} in {writer.label(parent)}",
            )
            return
        test = writer.equality(writer.access(parent, relation), value)
        condition = writer.check(Kind.VALUE, test, f"{label} == {value!r}")
        if type(value) in INDEXED_TYPES:
            self._writer.set_key(condition, parent, relation, Aspect.VALUE, (type(value), value))

    def _contents(self, name: str, node: ShadowNode) -> None:
        """Write the conditions on a fetched variable: the facts of its type and contents."""
        writer, constant = self._writer, self._source.constant
        value, label = node.variable, writer.label(node)
        if is_instance(node.type, type) and issubclass(node.type, torch.Tensor):
            self._tensor(name, node, label)
            return
        parent, relation = writer.guarded.edges[node.node_id][0]
        if self._functions and parent.node_id == EXTERNAL and relation.key in self._functions:
            return
        writer.check(
            Kind.TYPE,
            f"type({name}) is {constant(node.type, node.type.__name__)}",
            f"type({label}) is {node.type.__qualname__}",
            is_about_lifted=node.node_id in self._rec.lifted.external.nodes,
        )
        if is_instance(value, SCALARS) and Fact.VALUE in node.facts:  # a lifted number may differ
            same = constant(same_scalar, "same_scalar")
            test = f"{same}({name}, {constant(value, 'value')})"
            writer.check(Kind.SCALAR_VALUE, test, f"{label} == {value!r}")
        if is_instance(value, collections.deque):
            writer.check(
                Kind.DEQUE_MAXLEN,
                f"{name}.maxlen == {value.maxlen}",
                f"{label}.maxlen == {value.maxlen}",
            )
        if is_instance(value, types.FunctionType):
            test = f"{name}.__code__ is {constant(value.__code__, 'code')}"
            writer.check(Kind.FUNCTION_CODE, test, f"{label} runs the same code")
        else:
            self._extent(name, node, label)
        if Fact.TRUTH in node.facts and not _EXTENTS & node.facts:
            test = f"{constant(elements, 'elements')}({name})"
            writer.check(Kind.NOT_EMPTY, test, f"{label} is not empty")
        if is_instance(value, np.ndarray):
            self._array(name, node, label)

    def _extent(self, name: str, node: ShadowNode, label: str) -> None:
        """Write the conditions on keys, members or length of a container."""
        writer, constant, value = self._writer, self._source.constant, node.variable
        before = value if node.contents is None else node.contents
        if is_instance(value, dict):
            if is_instance(value, collections.defaultdict):
                test = f"{name}.default_factory is {constant(value.default_factory, 'factory')}"
                writer.check(Kind.DEFAULT_FACTORY, test, f"{label} has the same default_factory")
            if Fact.KEYS in node.facts:
                keys = f"{constant(ordered_keys)}({name})"
                self._keys(Kind.DICT_KEYS, keys, ordered_keys(before), label)
            elif Fact.LENGTH in node.facts:
                size = length_of(before)
                test = f"{self._length(node)} == {size}"
                writer.check(Kind.DICT_LENGTH, test, f"len({label}) == {size}")
        elif is_instance(value, set | frozenset) and Fact.VALUE in node.facts:
            members = name if node.type in CONTAINERS else f"{constant(elements)}({name})"
            self._keys(Kind.SET_MEMBERS, members, elements(before), label)
        elif Fact.LENGTH in node.facts:
            size = length_of(before) if is_instance(before, CONTAINERS) else len(before)
            test = f"{self._length(node)} == {size}"
            writer.check(Kind.LENGTH, test, f"len({label}) == {size}")

    def _length(self, node: ShadowNode) -> str:
        """An expression for a container's length that calls no method in Python."""
        if node.type in CONTAINERS or not issubclass(node.type, CONTAINERS):
            return f"len({self._writer.name(node)})"
        return f"{self._source.constant(length_of)}({self._writer.name(node)})"

    def _keys(self, kind: Kind, found: str, keys: list[Any], label: str) -> None:
        same = self._source.constant(same_keys, "same_keys")
        test = f"{same}({found}, {self._source.constant(keys, 'keys')})"
        self._writer.check(kind, test, f"list({label}) == [{', '.join(map(describe_key, keys))}]")

    def _array(self, name: str, node: ShadowNode, label: str) -> None:
        writer, constant, value = self._writer, self._source.constant, node.variable
        if node.first.value is not None:
            metadata = constant(node.first.value, "layout")
            test = f"{constant(same_metadata)}({name}, {metadata})"
            writer.check(Kind.ARRAY_METADATA, test, f"{label} is an array of {value.shape}")
        if Fact.VALUE in node.facts:
            before = value if node.contents is None else node.contents
            test = f"{constant(same_array, 'same_array')}({name}, {constant(before, 'array')})"
            writer.check(Kind.ARRAY_CONTENTS, test, f"{label} has the same contents")

    def _tensor(self, name: str, node: ShadowNode, label: str) -> None:
        tensor = node.variable  # None if the program has replaced and released it
        check = self._source.fresh("tensor")
        self._source.names[check] = node.first.value or TensorCheck(tensor)
        described = REPLACED_TENSOR if tensor is None else describe_tensor(tensor)
        condition = self._writer.check(Kind.TENSOR, f"{check}({name})", f"{label}: {described}")
        sizes = self._source.names[check].sizes()
        if sizes is not None:
            parent, relation = self._writer.guarded.edges[node.node_id][0]
            self._writer.set_key(condition, parent, relation, Aspect.SIZES, sizes)
        if self._rec.sizes.twin is not None and node.node_id in self._rec.sizes.twin.checks:
            self.dynamic.append((condition, node))

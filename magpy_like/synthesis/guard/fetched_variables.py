"""Fetched variables: those that a call brings, on the ways that the program took.

Each is fetched once, and what was relied on of it is asked for before anything behind it is
fetched: the way there looks into a variable only if that is of the type that it was.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.containers import CONTAINERS, SCALARS, elements, length_of
from magpy_like.monitor.recording import Recording
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import TensorCheck
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import is_same_value
from magpy_like.synthesis.generated_source import literal
from magpy_like.synthesis.guard.access_places import Places
from magpy_like.synthesis.guard.fixed_objects import FixedObjects
from magpy_like.synthesis.guard.guard_checks import (
    ordered_keys,
    same_array,
    same_keys,
    same_layout,
    same_scalar,
)
from magpy_like.synthesis.guard.guard_writer import GONE, describe_tensor

_EXTENTS = {Fact.LENGTH, Fact.KEYS, Fact.VALUE}
"""What tells whether a container holds anything, and more."""


class FetchedVariables(FixedObjects):
    """Conditions about what a call brings."""

    def __init__(self, rec: Recording, places: Places) -> None:
        super().__init__(rec, places)
        self._known: frozenset[int] | None = None
        """The positions of functions whose code a call cannot but bring, where there are such."""
        self._dynamic: list[tuple[int, int, ShadowNode]] = []
        """Tensors with dynamic dimensions: the numbers of reason and sentence, the node."""
        self._about_lifted: list[str] = []
        """The sentences about the types of lifted numbers."""

    def _fetch(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        if node.plain and Fact.VALUE in node.facts:
            self._value(parent, relation, node)
            return
        name = self.source.fresh("v")
        self.source.emit(f"{name} = {self._way(parent, relation)}")
        if relation.kind is RelationKind.ITERATION:
            self.source.names["NOTHING"] = NOTHING
            self._check(f"{name} is not NOTHING", f"{self.label(parent)} has something left")
        self.variables[node.node_id] = name
        self._contents(name, node)

    def _value(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        value = node.first.value
        if parent.node_id != EXTERNAL and self.places.is_watched(parent, relation):
            if relation.kind is RelationKind.MEMBERSHIP:
                self._watch(parent, relation, ..., equal=False)
                return
            self._watch(parent, relation, value, equal=True)
            self.readable.append(f"{self._label(parent, relation, node)} == {value!r}")
            return
        label = self._label(parent, relation, node)
        if relation.kind is RelationKind.MEMBERSHIP:
            where = self._key(relation.key)
            self._check(
                f"dict.__contains__({self.name(parent)}, {where})",
                f"{relation.key!r} in {self.label(parent)}",
            )
            return
        self._check(self._equals(self._way(parent, relation), value), f"{label} == {value!r}")

    def _equals(self, way: str, value: Any) -> str:
        if value is None or value is ... or is_instance(value, bool) or value is NotImplemented:
            return f"{way} is {value!r}"
        if is_instance(value, torch.dtype | torch.layout | torch.memory_format):
            return f"{way} is {self.source.constant(value, str(value))}"
        if is_instance(value, np.generic | np.dtype):
            same = self.source.constant(is_same_value)
            return f"{same}({way}, {self.source.constant(value, 'value')})"
        name = self.source.fresh("x")
        kind = self.source.constant(type(value), type(value).__name__)
        text = literal(value) or self.source.constant(value, "value")
        is_kind = f"type({name} := {way}) is {kind}"
        if is_instance(value, float):
            if value != value or value == 0:
                return f"{is_kind} and repr({name}) == {repr(value)!r}"
        elif not is_instance(value, int | str | bytes | torch.device):
            # 0j and -0j, or two empty ranges, are equal and yet not the same.
            return f"{is_kind} and repr({name}) == {repr(value)!r} and {name} == {text}"
        return f"{is_kind} and {name} == {text}"

    def _contents(self, name: str, node: ShadowNode) -> None:
        """What is relied on about a fetched variable itself."""
        value, label = node.variable, self.label(node)
        if is_instance(node.type, type) and issubclass(node.type, torch.Tensor):
            self._tensor(name, node, label)
            return
        parent, relation = self.places.edges[node.node_id][0]
        if self._known and parent.node_id == EXTERNAL and relation.key in self._known:
            return
        kind = self.source.constant(node.type, node.type.__name__)
        self._check(f"type({name}) is {kind}", f"type({label}) is {node.type.__qualname__}")
        if node.node_id in self.rec.lifted.nodes:
            self._about_lifted.append(self.readable[-1])
        before = value if node.contents is None else node.contents
        if is_instance(value, SCALARS) and Fact.VALUE in node.facts:  # a lifted number may differ
            same = self.source.constant(same_scalar, "same_scalar")
            self._check(
                f"{same}({name}, {self.source.constant(value, 'value')})", f"{label} == {value!r}"
            )
        if is_instance(value, collections.deque):
            self._check(f"{name}.maxlen == {value.maxlen}", f"{label}.maxlen == {value.maxlen}")
        if is_instance(value, types.FunctionType):
            code = self.source.constant(value.__code__, "code")
            self._check(f"{name}.__code__ is {code}", f"{label} runs the same code")
        elif is_instance(value, dict):
            if is_instance(value, collections.defaultdict):
                factory = self.source.constant(value.default_factory, "factory")
                self._check(
                    f"{name}.default_factory is {factory}", f"{label} makes the same defaults"
                )
            if Fact.KEYS in node.facts:
                self._keys(
                    f"{self.source.constant(ordered_keys)}({name})", ordered_keys(before), label
                )
            elif Fact.LENGTH in node.facts:
                size = length_of(before)
                self._check(f"{self._length(node)} == {size}", f"len({label}) == {size}")
        elif is_instance(value, set | frozenset) and Fact.VALUE in node.facts:
            held = name if node.type in CONTAINERS else f"{self.source.constant(elements)}({name})"
            self._keys(held, elements(before), label)
        elif Fact.LENGTH in node.facts:
            size = length_of(before) if is_instance(before, CONTAINERS) else len(before)
            self._check(f"{self._length(node)} == {size}", f"len({label}) == {size}")
        if Fact.TRUTH in node.facts and not _EXTENTS & node.facts:
            held = self.source.constant(elements, "elements")
            self._check(f"{held}({name})", f"{label} is not empty")
        if is_instance(value, np.ndarray) and node.first.value is not None:
            same = self.source.constant(same_layout)
            layout = self.source.constant(node.first.value, "layout")
            self._check(f"{same}({name}, {layout})", f"{label} is an array of {value.shape}")
        if Fact.VALUE in node.facts and is_instance(value, np.ndarray):
            same = self.source.constant(same_array, "same_array")
            array = self.source.constant(before, "array")
            self._check(f"{same}({name}, {array})", f"{label} holds what it held")

    def _length(self, node: ShadowNode) -> str:
        """An expression for how much a variable holds that runs no method of a class in Python."""
        if node.type in CONTAINERS or not issubclass(node.type, CONTAINERS):
            return f"len({self.name(node)})"
        return f"{self.source.constant(length_of)}({self.name(node)})"

    def _keys(self, way: str, keys: list[Any], label: str) -> None:
        same = self.source.constant(same_keys, "same_keys")
        self._check(
            f"{same}({way}, {self.source.constant(keys, 'keys')})", f"list({label}) == {keys!r}"
        )

    def _tensor(self, name: str, node: ShadowNode, label: str) -> None:
        tensor = node.variable  # None when the program has replaced it and let it go
        if self.rec.twin is not None and node.node_id in self.rec.twin.checks:
            self._dynamic.append((len(self.reasons), len(self.readable), node))
        check = self.source.fresh("tensor")
        self.source.names[check] = node.first.value or TensorCheck(tensor)
        said = GONE if tensor is None else describe_tensor(tensor)
        self._check(f"{check}({name})", f"{label}: {said}")

    def _alias(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        if node.plain:
            self._value(parent, relation, node)
            return
        label = self._label(parent, relation, node)
        self._check(
            f"{self._way(parent, relation)} is {self.name(node)}", f"{label} is {self.label(node)}"
        )

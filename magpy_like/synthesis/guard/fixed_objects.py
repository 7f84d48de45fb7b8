"""Fixed objects: those that are the same at every call, such as modules, classes and globals.

The record holds them, so they are looked at where they are, by the native :class:`Watch`: that they
still stand in the places where they were met, and still hold what was relied on.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.containers import CONTAINERS, SCALARS, elements, length_of
from magpy_like.monitor.recording import Recording
from magpy_like.native import instance_dict
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, MRO, ByIdentity, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import HEAP_TYPE
from magpy_like.synthesis.guard.access_places import Places
from magpy_like.synthesis.guard.guard_checks import (
    ordered_keys,
    place_check,
    same_array,
    same_keys,
    same_layout,
)
from magpy_like.synthesis.guard.guard_writer import GuardText, describe_tensor

_WATCHED_DIRECTLY = {
    RelationKind.KEY,
    RelationKind.GLOBAL,
    RelationKind.MEMBERSHIP,
    RelationKind.CELL,
    RelationKind.ITEM,
}
_FUNCTION_SLOTS = ("__code__", "__defaults__", "__kwdefaults__")


class FixedObjects(GuardText):
    """Conditions about objects that the record holds."""

    def __init__(self, rec: Recording, places: Places) -> None:
        super().__init__(rec, places)
        self.bound: set[int] = set()
        """Ids of the fixed objects that a call must bring with it."""
        self._watched: set[tuple[int, str]] = set()

    def _fixed_edge(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        """A fixed object must still be where it was met."""
        if parent.node_id == EXTERNAL:
            if relation.kind is RelationKind.LOCAL:
                self.bound.add(id(node.variable))
                text = f"{self._way(parent, relation)} is {self.name(node)}"
                self._check(text, f"{self.label(node)} is the same {node.type.__qualname__}")
            return
        if self.places.is_watched(parent, relation):
            self._watch(parent, relation, node.variable, equal=False)
            return
        self.bound.add(id(node.variable))
        text = f"{self._way(parent, relation)} is {self.name(node)}"
        self._check(text, f"{self.label(node)} is the same {node.type.__qualname__}")

    def _fixed_node(self, node: ShadowNode) -> None:
        value = node.variable
        if node.plain:
            return  # which object it is says all about it
        if node.type.__flags__ & HEAP_TYPE and not is_instance(value, type):
            self.watch.type(value)  # an instance may be given another class
        as_found = node.first.value
        if is_instance(value, np.ndarray) and as_found is not None:
            same = functools.partial(same_layout, value, as_found)
            self._call(same, f"{self.label(node)} is an array of {value.shape}")
        if is_instance(value, torch.Tensor) and as_found is not None and not as_found(value):
            # The program has changed its metadata.
            self._call(functools.partial(as_found, value), f"{self.label(node)} is as it was found")
        elif is_instance(value, torch.Tensor):
            self.watch.tensor(value)
            self.readable.append(f"{self.label(node)}: {describe_tensor(value)}, the same object")
        elif is_instance(value, types.FunctionType):
            self._once(value, "__code__", value.__code__)
        elif Fact.KEYS in node.facts or Fact.LENGTH in node.facts or Fact.VALUE in node.facts:
            self._fixed_extent(node, value)
        elif Fact.TRUTH in node.facts:
            self._call(lambda: bool(elements(value)), f"{self.label(node)} is not empty")

    def _fixed_extent(self, node: ShadowNode, value: Any) -> None:
        label = self.label(node)
        before = value if node.contents is None else node.contents
        if is_instance(value, collections.defaultdict):
            factory = value.default_factory
            self._call(lambda: value.default_factory is factory, f"{label} makes the same defaults")
        if is_instance(value, dict) and Fact.KEYS in node.facts:
            keys = ordered_keys(before)
            if is_instance(value, collections.OrderedDict):  # its order is not that of a dict
                self._call(lambda: same_keys(ordered_keys(value), keys), f"{label}: {keys!r}")
            else:
                self.watch.size(value, keys)
            self.readable.append(f"{label} has {len(keys)} keys, the same in the same order")
        elif is_instance(value, list | dict) and Fact.LENGTH in node.facts:
            size = list.__len__(before) if is_instance(before, list) else dict.__len__(before)
            self.watch.size(value, size)
            self.readable.append(f"len({label}) == {size}")
        elif is_instance(value, np.ndarray):
            self._call(functools.partial(same_array, value, before), f"{label} holds what it held")
        elif is_instance(value, set | frozenset) and Fact.VALUE in node.facts:
            members = elements(before)
            self._call(lambda: same_keys(elements(value), members), f"{label} has the same members")
        elif not is_instance(value, (tuple, frozenset, *SCALARS)):  # these cannot change
            length = length_of if is_instance(value, CONTAINERS) else len
            size = length(before)
            self._call(lambda: length(value) == size, f"len({label}) == {size}")

    def _watch(self, parent: ShadowNode, relation: Relation, value: Any, *, equal: bool) -> None:
        """A place of a fixed object must hold ``value`` (... for anything, NOTHING for nothing)."""
        owner = parent.variable
        kind, key = relation
        if is_instance(key, ByIdentity):
            key = key.variable
        if kind is RelationKind.TYPE:
            self.watch.place(owner, key, value, equal)
        elif relation == (RelationKind.SLOT, MRO) and is_instance(owner, type):
            self.watch.place(owner, None, value, False)
        elif key in _FUNCTION_SLOTS and is_instance(owner, types.FunctionType):
            self._once(owner, key, value)
        elif kind is RelationKind.ATTRIBUTE:
            self.watch.place(instance_dict(owner), key, value, equal)
            self._holds(owner)
        elif kind is RelationKind.CELL and is_instance(owner, types.CellType):
            self.watch.place(owner, None, value, equal)
        elif kind is RelationKind.ITEM and is_instance(owner, tuple):
            pass  # a tuple cannot change
        elif kind in _WATCHED_DIRECTLY and is_instance(owner, dict | list):
            self.watch.place(owner, key, value, equal)
        elif kind is RelationKind.CLOSURE or is_instance(owner, types.MethodType):
            pass  # the cells of a function cannot change, nor can the parts of a bound method
        elif kind is RelationKind.DEFAULT and is_instance(key, int):
            self._once(owner, "__defaults__", owner.__defaults__)
        elif kind is RelationKind.DEFAULT:
            self._once(owner, "__kwdefaults__", owner.__kwdefaults__)
            self.watch.place(owner.__kwdefaults__, key, value, equal)
        elif kind is RelationKind.DICT:
            if not is_instance(owner, type):
                self._holds(owner)
        elif kind is not RelationKind.MAPPING and not is_instance(owner, slice):
            label = f"{self.label(parent)} → {relation}"
            self.watch.place(place_check(owner, relation, value, equal), label, True, False)

    def _holds(self, owner: Any) -> None:
        """The owner keeps its attributes in the dictionary that it has: it may be given another."""
        if (id(owner), "__dict__") not in self._watched:
            self._watched.add((id(owner), "__dict__"))
            self.watch.holder(owner)

    def _once(self, owner: Any, slot: str, value: Any) -> None:
        if (id(owner), slot) not in self._watched:
            self._watched.add((id(owner), slot))
            self.watch.place(owner, slot, value, False)

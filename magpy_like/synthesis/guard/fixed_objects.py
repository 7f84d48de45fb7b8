"""Conditions on fixed objects: those that are the same at every call, as modules and classes are.

The record holds these objects, so the native :class:`Watch` compares them where they are: each is
still stored in the locations where the program found it, and still has the contents that the
program relied on.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from typing import Any

import numpy as np
import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.containers import CONTAINERS, SCALARS, elements, length_of
from magpy_like.native import instance_dict
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import EXTERNAL, MRO, ByIdentity, Fact, Relation, ShadowNode
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_interned, is_plain
from magpy_like.synthesis.generated_source import describe_key
from magpy_like.synthesis.guard.conditions import Aspect, Kind
from magpy_like.synthesis.guard.guard_checks import (
    location_check,
    ordered_keys,
    same_array,
    same_keys,
    same_metadata,
)
from magpy_like.synthesis.guard.guard_writer import GuardWriter, describe_tensor

_ENTRIES = {
    RelationKind.KEY,
    RelationKind.GLOBAL,
    RelationKind.MEMBERSHIP,
    RelationKind.CELL,
    RelationKind.ITEM,
}
"""Relations to an entry of a dictionary or list."""
_FUNCTION_SLOTS = ("__code__", "__defaults__", "__kwdefaults__")


def _is_value(key: Any) -> bool:
    """True if equal keys may differ, as 0.0 and -0.0 do, and distinct objects be the same key."""
    if is_instance(key, tuple | frozenset | weakref.ref):
        return True
    return is_plain(key) and type(key) not in (str, int, bytes) and not is_interned(key)


class FixedObjects:
    """Writes the conditions on objects that the record holds."""

    def __init__(self, writer: GuardWriter) -> None:
        self._writer, self._guarded = writer, writer.guarded
        self.bound: set[int] = set()
        """Ids of the fixed objects that a call must bring, as an argument or in one."""
        self._watched: set[tuple[int, str]] = set()

    def edge(self, parent: ShadowNode, relation: Relation, node: ShadowNode) -> None:
        """The fixed object ``node`` is still at its location."""
        if parent.node_id == EXTERNAL:
            if relation.kind is RelationKind.LOCAL:
                self._is_same_object(Kind.FIXED_ARGUMENT, parent, relation, node)
        elif self._guarded.is_fixed_location(parent, relation):
            self.location(Kind.FIXED_IN_FIXED, parent, relation, node.variable, equal=False)
        else:
            self._is_same_object(Kind.FIXED_IN_FETCHED, parent, relation, node)

    def _is_same_object(
        self, kind: Kind, parent: ShadowNode, relation: Relation, node: ShadowNode
    ) -> None:
        writer = self._writer
        self.bound.add(id(node.variable))
        test = f"{writer.access(parent, relation)} is {writer.name(node)}"
        description = f"{writer.label(node)} is the same {node.type.__qualname__}"
        condition = writer.check(kind, test, description)
        writer.set_key(condition, parent, relation, Aspect.IDENTITY, id(node.variable))

    def contents(self, node: ShadowNode) -> None:
        """The fixed object still has the type and the contents that the program relied on."""
        value, writer = node.variable, self._writer
        if node.plain:
            return  # its identity implies the rest
        of_heap = node.type.__flags__ & HEAP_TYPE and not is_instance(value, type)
        if of_heap or is_instance(value, types.ModuleType):  # __class__ can be assigned
            writer.watched((Kind.FIXED_TYPE,), "type", value)
        as_found = node.first.value
        if is_instance(value, np.ndarray) and as_found is not None:
            same = functools.partial(same_metadata, value, as_found)
            description = f"{writer.label(node)} is an array of {value.shape}"
            writer.call(Kind.FIXED_ARRAY_METADATA, same, description)
        if is_instance(value, torch.Tensor) and as_found is not None and not as_found(value):
            # The program has changed its metadata.
            same = functools.partial(as_found, value)
            description = f"{writer.label(node)} has the recorded metadata"
            writer.call(Kind.FIXED_TENSOR_AS_FOUND, same, description)
        elif is_instance(value, torch.Tensor):
            writer.watched((Kind.FIXED_TENSOR,), "tensor", value)
            writer.note(f"{writer.label(node)}: {describe_tensor(value)}, the same object")
        elif is_instance(value, types.FunctionType):
            self._slot((Kind.FIXED_FUNCTION_CODE,), value, "__code__", value.__code__)
        elif Fact.KEYS in node.facts or Fact.LENGTH in node.facts or Fact.VALUE in node.facts:
            self._extent(node, value)
        elif Fact.TRUTH in node.facts:
            description = f"{writer.label(node)} is not empty"
            writer.call(Kind.FIXED_NOT_EMPTY, lambda: bool(elements(value)), description)

    def _extent(self, node: ShadowNode, value: Any) -> None:
        """A container has as many elements, or the same keys, members or data."""
        writer, label = self._writer, self._writer.label(node)
        before = value if node.contents is None else node.contents
        if is_instance(value, collections.defaultdict):
            factory = value.default_factory
            writer.call(
                Kind.FIXED_DEFAULT_FACTORY,
                lambda: value.default_factory is factory,
                f"{label} has the same default_factory",
            )
        if is_instance(value, dict) and Fact.KEYS in node.facts:
            keys = ordered_keys(before)
            # The order of an OrderedDict is not that of a dict.
            if is_instance(value, collections.OrderedDict) or any(map(_is_value, keys)):
                writer.call(
                    Kind.FIXED_ORDERED_KEYS,
                    lambda: same_keys(ordered_keys(value), keys),
                    f"{label}: [{', '.join(map(describe_key, keys))}]",
                )
            else:
                writer.watched((Kind.FIXED_KEYS,), "size", value, keys)
            writer.note(f"{label} has {len(keys)} keys, the same in the same order")
        elif is_instance(value, list | dict) and Fact.LENGTH in node.facts:
            size = list.__len__(before) if is_instance(before, list) else dict.__len__(before)
            writer.watched((Kind.FIXED_LENGTH,), "size", value, size)
            writer.note(f"len({label}) == {size}")
        elif is_instance(value, np.ndarray):
            same = functools.partial(same_array, value, before)
            writer.call(Kind.FIXED_ARRAY_CONTENTS, same, f"{label} has the same contents")
        elif is_instance(value, set | frozenset) and Fact.VALUE in node.facts:
            members = elements(before)
            writer.call(
                Kind.FIXED_SET_MEMBERS,
                lambda: same_keys(elements(value), members),
                f"{label} has the same members",
            )
        elif not is_instance(value, (tuple, frozenset, *SCALARS)):  # these are immutable
            length = length_of if is_instance(value, CONTAINERS) else len
            size = length(before)
            writer.call(
                Kind.FIXED_OTHER_LENGTH, lambda: length(value) == size, f"len({label}) == {size}"
            )

    def location(
        self, kind: Kind, parent: ShadowNode, relation: Relation, value: Any, *, equal: bool
    ) -> None:
        """A location in a fixed object holds ``value``: ANY_VALUE, or NOTHING for none at all.

        Plain values are compared by value if ``equal``, other objects by identity.
        """
        owner, watched = parent.variable, self._writer.watched
        relation_kind, key = relation
        if is_instance(key, ByIdentity):
            key = key.variable
        if relation_kind is RelationKind.TYPE:
            watched((Kind.STORED_TYPE_ATTRIBUTE, kind), "location", owner, key, value, equal)
        elif relation_kind is RelationKind.SLOT and key == MRO and is_instance(owner, type):
            watched((Kind.STORED_MRO, kind), "location", owner, None, value, False)
        elif key in _FUNCTION_SLOTS and is_instance(owner, types.FunctionType):
            self._slot((Kind.STORED_FUNCTION_SLOT, kind), owner, key, value)
        elif relation_kind is RelationKind.ATTRIBUTE:
            attributes = instance_dict(owner)
            watched((Kind.STORED_ATTRIBUTE, kind), "location", attributes, key, value, equal)
            self._keeps_dictionary((Kind.OWN_DICTIONARY, kind), owner)
        elif relation_kind is RelationKind.CELL and is_instance(owner, types.CellType):
            watched((Kind.STORED_CELL, kind), "location", owner, None, value, equal)
        elif relation_kind is RelationKind.ITEM and is_instance(owner, tuple):
            pass  # immutable
        elif relation_kind in _ENTRIES and is_instance(owner, dict | list):
            watched((Kind.STORED_ENTRY, kind), "location", owner, key, value, equal)
        elif relation_kind is RelationKind.CLOSURE or is_instance(owner, types.MethodType):
            pass  # the cells of a function and the parts of a bound method are immutable
        elif relation_kind is RelationKind.DEFAULT and is_instance(key, int):
            kinds = Kind.STORED_DEFAULTS, kind
            self._slot(kinds, owner, "__defaults__", owner.__defaults__)
        elif relation_kind is RelationKind.DEFAULT:
            defaults, kinds = owner.__kwdefaults__, (Kind.STORED_KEYWORD_DEFAULTS, kind)
            self._slot(kinds, owner, "__kwdefaults__", defaults)
            watched((Kind.STORED_KEYWORD_DEFAULT, kind), "location", defaults, key, value, equal)
        elif relation_kind is RelationKind.DICT:
            if not is_instance(owner, type):
                self._keeps_dictionary((Kind.OWN_DICTIONARY_READ, kind), owner)
        elif relation_kind is not RelationKind.MAPPING and not is_instance(owner, slice):
            label = f"{self._writer.label(parent)} → {relation}"
            check = location_check(owner, relation, value, equal)
            watched((Kind.STORED_ELSEWHERE, kind), "location", check, label, True, False)

    def _keeps_dictionary(self, kinds: tuple[Kind, ...], owner: Any) -> None:
        """An instance still has the same ``__dict__``, which can be assigned."""
        if (id(owner), "__dict__") not in self._watched:
            self._watched.add((id(owner), "__dict__"))
            self._writer.watched((Kind.HOLDER, *kinds), "instance_dict", owner)

    def _slot(self, kinds: tuple[Kind, ...], owner: Any, slot: str, value: Any) -> None:
        """A slot of a function, watched once."""
        if (id(owner), slot) not in self._watched:
            self._watched.add((id(owner), slot))
            self._writer.watched(kinds, "location", owner, slot, value, False)

"""Following access paths through the program's objects, relation by relation."""

from __future__ import annotations

from typing import Any

from magpy_like.annotation import RelationKind
from magpy_like.monitor.objects.iterators import peek
from magpy_like.native import ABSENT as NOTHING
from magpy_like.native import attribute, instance_dict
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import REFERENT, ByIdentity, Relation
from magpy_like.refgraph.plain_values import proxied_mapping


def follow(parent: Any, relation: Relation) -> Any:
    """The present value at a location.

    Raises:
        LookupError, AttributeError, ValueError: there is none.
    """
    kind, key = relation
    if kind is RelationKind.ATTRIBUTE:
        return attribute(parent, key)
    if kind in (RelationKind.KEY, RelationKind.GLOBAL, RelationKind.MEMBERSHIP):
        if is_instance(key, ByIdentity):
            key = key.variable
            if key is None:
                raise LookupError("the key is gone")
        return dict_value(parent, key)
    if kind is RelationKind.ITEM:
        return _item(parent, key)
    if kind is RelationKind.CELL:
        return parent.cell_contents
    if kind is RelationKind.ITERATION:
        found = peek(parent, key) if is_instance(key, int) else NOTHING
        if found is NOTHING:
            raise LookupError("the iterator is exhausted")
        return found
    if kind is RelationKind.CONTEXT:
        return parent.get()
    if kind is RelationKind.CLOSURE:
        return parent.__closure__[key]
    if kind is RelationKind.DEFAULT:
        return (parent.__defaults__ if is_instance(key, int) else parent.__kwdefaults__)[key]
    if kind is RelationKind.SLOT:
        return parent() if key == REFERENT else object.__getattribute__(parent, str(key))
    if kind is RelationKind.DICT:
        return instance_dict(parent)
    if kind is RelationKind.MAPPING:
        return proxied_mapping(parent)
    if kind is RelationKind.TYPE:
        return class_value(parent, key)
    raise LookupError(f"{relation} cannot be followed")


def dict_value(entries: dict[Any, Any], key: Any) -> Any:
    """The value of a key in a dictionary; ``__missing__`` is not called."""
    found = dict.get(entries, key, NOTHING)
    if found is NOTHING:
        raise KeyError(key)
    return found


def _item(parent: Any, index: Any) -> Any:
    if is_instance(parent, list):
        return list.__getitem__(parent, index)
    if is_instance(parent, tuple):
        return tuple.__getitem__(parent, index)
    return parent[index]


def class_value(cls: type, key: Any) -> Any:
    """The attribute ``key`` of a class or its bases; ``(name, cls)`` searches after ``cls``."""
    name, after = key if is_instance(key, tuple) else (key, None)
    mro = cls.__mro__
    for base in mro if after is None else mro[mro.index(after) + 1 :]:
        if name in base.__dict__:
            return base.__dict__[name]
    raise LookupError(name)

"""Statements of a mock that write, remove or read the value at one location."""

from __future__ import annotations

import collections
import contextlib
from typing import Any

from magpy_like.annotation import RelationKind
from magpy_like.native import instance_dict
from magpy_like.refgraph import Relation
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.synthesis.generated_source import Source

_WRITES: dict[RelationKind, tuple[str, str | None]] = {
    RelationKind.ATTRIBUTE: (
        "dict.__setitem__({attributes}, {key}, {value})",
        "dict.pop({attributes}, {key}, None)",
    ),
    RelationKind.GLOBAL: ("{owner}[{key}] = {value}", "{owner}.pop({key}, None)"),
    RelationKind.KEY: (
        "{base}.__setitem__({owner}, {key}, {value})",
        "{base}.pop({owner}, {key}, None)",
    ),
    RelationKind.ITEM: ("list.__setitem__({owner}, {key}, {value})", None),
    RelationKind.CELL: ("{owner}.cell_contents = {value}", "del {owner}.cell_contents"),
    RelationKind.CONTEXT: ("{owner}.set({value})", None),
    RelationKind.SLOT: (
        "object.__setattr__({owner}, {key}, {value})",
        "{clear}({owner}, {key})",
    ),
}
"""Statements that store a value at a location, and that remove it."""
_READS: dict[tuple[RelationKind, type | None], str] = {
    (RelationKind.ATTRIBUTE, None): "{instance_dict}({owner})[{key}]",
    (RelationKind.GLOBAL, None): "{owner}[{key}]",
    (RelationKind.KEY, dict): "{owner}[{key}]",
    (RelationKind.ITEM, list): "{owner}[{key}]",
    (RelationKind.CELL, None): "{owner}.cell_contents",
}
"""Expressions that read a location without a call, by relation and type of the owner."""


def native_base(cls: type) -> type:
    """The native container whose own methods change the instances of ``cls``."""
    bases = (collections.OrderedDict, dict, list, set, collections.deque)
    return next(base for base in bases if issubclass(cls, base))


def write_statement(
    owner: str, relation: Relation, key: str, value: str | None, source: Source, owner_type: type
) -> str:
    """The statement that stores ``value`` at a location, or removes it (None).

    Raises:
        Split: a mock cannot write such a location.
    """
    kind = relation.kind
    assign, delete = _WRITES.get(kind, (None, None))
    text = delete if value is None else assign
    if text is None:
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"{'removes' if value is None else 'changes'} the variable at the relation {relation}",
        )
    base = clear = attributes = ""
    if kind is RelationKind.ATTRIBUTE:
        attributes = f"{source.constant(instance_dict)}({owner})"
    elif kind is RelationKind.KEY:
        native = native_base(owner_type)
        base = source.constant(native, native.__name__)
    elif kind is RelationKind.SLOT and value is None:
        clear = source.constant(_clear_slot, "clear_slot")
    names = {"owner": owner, "attributes": attributes, "base": base, "clear": clear}
    return text.format(**names, key=key, value=value)


def class_write_statement(cls: type, name: str, value: str | None, source: Source) -> str:
    """The statement that sets an attribute of a class, or removes it (None)."""
    owner = source.constant(cls, cls.__name__)
    if value is None:
        return f"{source.constant(_clear_class_attribute)}({owner}, {name!r})"
    return f"{source.constant(type.__setattr__, 'set_on_class')}({owner}, {name!r}, {value})"


def is_read_atomically(relation: Relation, owner_type: type) -> bool:
    """True if the interpreter reads the location without a call that may switch threads."""
    return (relation.kind, owner_type) in _READS or (relation.kind, None) in _READS


def read_expression(
    owner: str, relation: Relation, key: str, source: Source, owner_type: type
) -> str:
    """An expression for the value at a location that is read atomically."""
    kind = relation.kind
    text = _READS.get((kind, owner_type)) or _READS[kind, None]
    reader = source.constant(instance_dict) if kind is RelationKind.ATTRIBUTE else ""
    return text.format(instance_dict=reader, owner=owner, key=key)


def _clear_slot(owner: Any, name: str) -> None:
    """Remove a slot's value; a program that has filled it before does not read whether it was."""
    with contextlib.suppress(AttributeError):
        object.__delattr__(owner, name)


def _clear_class_attribute(cls: type, name: str) -> None:
    """Remove an attribute of a class, if there is one."""
    with contextlib.suppress(AttributeError):
        type.__delattr__(cls, name)

"""Look-ups in classes, and attributes that the program sets on them.

``cls.name`` is looked up in the classes of the MRO. Most look-ups are one edge, TYPE, to the
result, as the interpreter has one cache for them. Numbers, which may be counters, and names that
the program sets on some class need more: each class of the MRO is read, and the location is the
entry in the dictionary of the class that defines it, for all classes and instances that inherit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from magpy_like.annotation.schema import RelationKind
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import MRO, Relation, ShadowNode
from magpy_like.refgraph.plain_values import HEAP_TYPE, class_entries
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

_dict_of = type.__dict__["__dict__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_DESCRIPTOR_METHODS = ("__get__", "__set__", "__delete__")


def entries_of(rec: Recording, cls: type) -> ShadowNode:
    """The node of the dictionary in which a class keeps its own attributes."""
    node = rec.variables.constant(class_entries(cls))
    rec.classes.by_dictionary[node.node_id] = cls
    return node


def read_class(rec: Recording, cls: type, name: str) -> Any:
    """Record the look-up of ``name`` in ``cls.__mro__``; return the result, NULL if there is
    none."""
    found = lookup_in_type(cls, name)
    if rec.variables.is_new_object(cls):
        for base in cls.__mro__:
            if not rec.variables.is_new_object(base):
                read_class(rec, base, name)
            elif name in _dict_of(base):
                break
    elif cls.__flags__ & HEAP_TYPE:
        _look_up(rec, cls, name, name, cls.__mro__, found)
    return found


def read_super(rec: Recording, cls: type, of: type, name: str) -> None:
    """Record ``super(cls, obj).name``: a look-up in the classes after ``cls`` in the MRO of
    ``of``."""
    mro = of.__mro__
    following = mro[mro.index(cls) + 1 :]
    for base in following:
        if rec.variables.is_new_object(of) and not rec.variables.is_new_object(base):
            read_class(rec, base, name)
        if name in _dict_of(base):
            read_descriptor_methods(rec, _dict_of(base)[name])
            if not rec.variables.is_new_object(of):
                _look_up(rec, of, name, (name, cls), following, _dict_of(base)[name])
            return


def read_descriptor_methods(rec: Recording, found: Any) -> None:
    """Record whether a class attribute is a descriptor: its class may get or lose the methods."""
    kind = type(found)
    if found is not NULL and kind.__flags__ & HEAP_TYPE:
        for name in _DESCRIPTOR_METHODS:
            read_class(rec, kind, name)


def precedes_instance(rec: Recording, found: Any) -> bool:
    """True if a class attribute is a descriptor that Python calls before it looks into the
    instance."""
    if found is NULL:
        return False
    read_descriptor_methods(rec, found)
    getter, *setters = (lookup_in_type(type(found), name) for name in _DESCRIPTOR_METHODS)
    return getter is not NULL and any(setter is not NULL for setter in setters)


def _look_up(
    rec: Recording, cls: type, name: str, key: Any, bases: Sequence[type], found: Any
) -> None:
    """Record a look-up of ``name`` in ``bases``, the MRO of ``cls`` or a tail of it."""
    if name in rec.classes.names_set or is_number(found):
        _read_entries(rec, cls, name, bases)
        return
    node, relation = rec.variables.constant(cls), Relation(RelationKind.TYPE, key)
    if relation not in node.first.refs:
        if found is NULL:
            rec.reads.record_absent(node, relation)
        else:
            rec.reads.record(node, relation, found)


def _read_entries(rec: Recording, cls: type, name: str, bases: Sequence[type]) -> None:
    """Record the reads of the dictionaries of classes, up to the first that has the name."""
    for i, base in enumerate(bases):
        is_defined = name in _dict_of(base)
        if base.__flags__ & HEAP_TYPE:  # others cannot be changed
            node, relation = entries_of(rec, base), Relation(RelationKind.KEY, name)
            if is_defined:
                rec.reads.record(node, relation, _dict_of(base)[name])
            else:
                rec.reads.record_absent(node, relation)
        if (is_defined and (i or base is not cls)) or (not is_defined and base is bases[-1]):
            read_mro(rec, cls)
        if is_defined:
            return


def read_mro(rec: Recording, cls: type) -> None:
    """Record a read of the classes that a class inherits from: ``__bases__`` can be set."""
    for base in _mro_of(cls) if rec.variables.is_new_object(cls) else (cls,):
        if base.__flags__ & HEAP_TYPE and not rec.variables.is_new_object(base):
            node, relation = rec.variables.constant(base), Relation(RelationKind.SLOT, MRO)
            rec.reads.record(node, relation, _mro_of(base))


def location_of_class_number(
    rec: Recording, cls: type, name: str
) -> tuple[ShadowNode | None, Relation]:
    """The location of an attribute in the classes of an MRO."""
    relation = Relation(RelationKind.KEY, name)
    holder = next(base for base in cls.__mro__ if name in _dict_of(base))
    changeable = holder.__flags__ & HEAP_TYPE and not rec.variables.is_new_object(holder)
    return entries_of(rec, holder) if changeable else None, relation


def location_of_store(
    rec: Recording, cls: type, name: str, setter: Any
) -> tuple[ShadowNode, Relation]:
    """The location that ``cls.name = value`` changes, for a class that can be changed.

    Raises:
        Split: ``setter``, the metaclass's ``__setattr__``, is native code of its own.
    """
    if setter not in (type.__setattr__, type.__delattr__):
        raise Split(
            SplitReason.CLASS_CHANGE,
            f"sets an attribute of class {cls.__qualname__}, which native code stores",
        )
    _follow_entries(rec, name)
    return entries_of(rec, cls), Relation(RelationKind.KEY, name)


def _follow_entries(rec: Recording, name: str) -> None:
    """Replace recorded look-ups of ``name`` by reads of the dictionaries: from now on a look-up
    may return a value that the program has set itself."""
    if name in rec.classes.names_set:
        return
    rec.classes.names_set.add(name)
    rec.classes.special_names.clear()
    for node in list(rec.refs):
        cls = node.variable
        if not is_instance(cls, type):
            continue
        for relation in [r for r in node.first.refs if r.kind is RelationKind.TYPE]:
            key = relation.key
            called, after = key if is_instance(key, tuple) else (key, None)
            if called == name:
                for version in node.versions:
                    version.refs.pop(relation, None)
                mro = cls.__mro__
                _read_entries(rec, cls, name, mro[0 if after is None else mro.index(after) + 1 :])

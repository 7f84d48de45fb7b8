"""Look-ups that the creation of a class makes in its metaclass, its bases, and its attributes."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from magpy_like.monitor.objects import class_lookup
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import class_entries

if TYPE_CHECKING:
    from magpy_like.monitor.recording import Recording

CREATES_CLASSES = (builtins.__build_class__, type, type.__new__)
"""Native functions that create classes."""


def read_creation(rec: Recording, cls: Any) -> None:
    """Record the look-ups of special methods that have created a new class."""
    if not is_instance(cls, type) or not rec.variables.is_new_object(cls):
        return
    meta, entries = type(cls), class_entries(cls)
    class_lookup.read_class(rec, type(meta), "__call__")
    for name in ("__prepare__", "__new__", "__init__"):
        class_lookup.read_class(rec, meta, name)
    class_lookup.read_super(rec, cls, cls, "__init_subclass__")
    for value in tuple(entries.values()):
        class_lookup.read_class(rec, type(value), "__set_name__")
    for base in entries.get("__orig_bases__", ()):
        if not is_instance(base, type):
            class_lookup.read_class(rec, type(base), "__mro_entries__")

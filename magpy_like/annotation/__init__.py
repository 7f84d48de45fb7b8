"""Annotations of operations (MagPy, section 5.2): schema, files, look-up, verification."""

from magpy_like.annotation.lookup import NULL, annotate, load_annotations, lookup, resolve
from magpy_like.annotation.schema import (
    Annotation,
    InputProperty,
    OutputProperty,
    RelationKind,
    RelationProperty,
    ValueRead,
)

__all__ = [
    "NULL",
    "Annotation",
    "InputProperty",
    "OutputProperty",
    "RelationKind",
    "RelationProperty",
    "ValueRead",
    "annotate",
    "load_annotations",
    "lookup",
    "resolve",
]

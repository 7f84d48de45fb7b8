"""Annotations of operations (MagPy, section 5.2).

- ``schema``: one annotation and its properties
- ``annotation_files``: the folder of the YAML files
- ``loader``: YAML files to rules, with file and line for errors
- ``lookup``: from an operation to its annotation; public ``annotate`` and ``load_annotations``
- ``operator_facts``: facts of operators in all their variants, by name
- ``data_dependent_sizes``: operators whose results' sizes depend on their inputs' data
- ``verify``: verification of annotations by running the operations
- ``annotation_command``: the command ``magpy annotations``
"""

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

"""Arguments of native calls: the depth to which they are read, and the lifted numbers in them.

The annotation declares the depth of each argument. A number is specialized where native code reads
its value, and stays lifted where native code only moves it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.checkpoint

from magpy_like.annotation import Annotation, RelationKind, ValueRead
from magpy_like.monitor.calls.read_calls import inputs_of
from magpy_like.monitor.objects.containers import CONTAINERS
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.expressions import is_liftable
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


def substitute_inputs(
    context: Context, annotation: Annotation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Substitute lifted numbers in the containers whose elements a call reads."""
    relation = annotation.output.relation
    for position, value in inputs_of(args, kwargs):
        read = annotation.input(position).value_read
        shown = relation is not None and relation.of == position and relation.kind in _SHOWS
        if shown or read in READS_ELEMENTS:
            varying_reads.substitute(context, value, deep=read is ValueRead.ALL)


def read_all_inputs(
    context: Context,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Record the reads of a constructor call, by the annotation of ``operation``."""
    rec = context.recording
    substitute_inputs(context, annotation, args, kwargs)
    for position, value in inputs_of(args, kwargs):
        read = annotation.input(position).value_read
        specialize_input(context, operation, read, value)
        rec.inspections.visit(value, read)
        if read in COMPARES_OBJECTS:
            rec.inspections.record_comparison(value)


def specialize_input(context: Context, operation: Any, read: ValueRead, value: Any) -> None:
    """Specialize the lifted numbers in an argument if ``operation`` reads their values."""
    if read not in READS_TYPE_ONLY and (operation not in _MOVES or is_liftable(value)):
        context.lifted.specialize(_keys_of(value) if operation is dict else value)


def _keys_of(value: Any) -> Any:
    """The values that ``dict(value)`` hashes, as far as they are known in advance."""
    if is_instance(value, dict):
        return tuple(dict.keys(value))
    return value.__reduce__()[1][:1] if type(value) is zip else value


def visit_input(rec: Recording, value: Any) -> None:
    """Record that an operator reads an argument to any depth."""
    if is_instance(value, (*CONTAINERS, np.ndarray)):
        rec.inspections.visit(value, ValueRead.ALL)


_MOVES = {
    tuple, list, zip, enumerate, reversed, iter, next, len, itertools.chain, list.append,
    list.extend, list.insert, list.copy, list.pop, dict.values, dict.items, dict.get, torch.Size,
    torch.Size.__new__,
}  # fmt: skip
"""Functions that move the elements of a container without reading their values."""

_SHOWS = (RelationKind.ITERATION, RelationKind.COPY)


READS_ELEMENTS = (ValueRead.ELEMENTS, ValueRead.PAIRS, ValueRead.ALL)


COMPARES_OBJECTS = (ValueRead.IDENTITY, ValueRead.KEYS, ValueRead.PAIRS, ValueRead.ALL)
"""Reads that may compare an object with others, or with itself."""

READS_TYPE_ONLY = (ValueRead.NONE, ValueRead.TYPE)
"""Reads of a number that depend on its type only, which the guard checks."""

CALLS_NO_METHODS = (*READS_TYPE_ONLY, ValueRead.IDENTITY)
"""Reads of an object that look up no special method in its class."""

DISTINGUISHES_EQUAL_OBJECTS = (id, operator.is_, operator.is_not)
"""Functions whose results differ for equal values that are distinct objects."""

"""What native code is given: how deep it looks, and what that says of numbers that may vary.

The annotation tells the depth for each argument. A number is relied on where its value is looked
at, and lifted where it is only handed on.
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
from magpy_like.monitor.symbolic.expressions import is_liftable
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]


def substitute_inputs(
    run: MonitorRun, annotation: Annotation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Numbers that vary in containers which a call goes through are lifted."""
    relation = annotation.output.relation
    for position, value in inputs_of(args, kwargs):
        read = annotation.input(position).value_read
        shown = relation is not None and relation.of == position and relation.kind in _SHOWS
        if shown or read in READS_ELEMENTS:
            run.substitute(value, deep=read is ValueRead.ALL)


def read_all_inputs(
    run: MonitorRun,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """A call looks at its arguments as those of ``operation`` do, which makes a new object."""
    rec = run.recording
    substitute_inputs(run, annotation, args, kwargs)
    for position, value in inputs_of(args, kwargs):
        read = annotation.input(position).value_read
        specialize_input(run, operation, read, value)
        rec.visit(value, read)
        if read in COMPARES_OBJECTS:
            rec.compare(value)


def specialize_input(run: MonitorRun, operation: Any, read: ValueRead, value: Any) -> None:
    """An argument is read in this way: numbers in it that vary are guarded, if it is looked at."""
    if read not in READS_TYPE_ONLY and (operation not in _MOVES or is_liftable(value)):
        run.lifted.specialize(_keys_of(value) if operation is dict else value)


def _keys_of(value: Any) -> Any:
    """What a dictionary made of a value hashes, as far as that can be told beforehand."""
    if is_instance(value, dict):
        return tuple(dict.keys(value))
    return value.__reduce__()[1][:1] if type(value) is zip else value


def visit_input(rec: Recording, value: Any) -> None:
    """An operator looks at its whole argument, however deep its tensors lie."""
    if is_instance(value, (*CONTAINERS, np.ndarray)):
        rec.visit(value, ValueRead.ALL)


_MOVES = {
    tuple, list, zip, enumerate, reversed, iter, next, len, itertools.chain, list.append,
    list.extend, list.insert, list.copy, list.pop, dict.values, dict.items, dict.get, torch.Size,
    torch.Size.__new__,
}  # fmt: skip
"""Functions that hand on what a container holds without looking at it."""

_SHOWS = (RelationKind.ITERATION, RelationKind.COPY)


READS_ELEMENTS = (ValueRead.ELEMENTS, ValueRead.PAIRS, ValueRead.ALL)


COMPARES_OBJECTS = (ValueRead.IDENTITY, ValueRead.KEYS, ValueRead.PAIRS, ValueRead.ALL)
"""Looks at an object that may compare it with others, or with itself."""

READS_TYPE_ONLY = (ValueRead.NONE, ValueRead.TYPE)
"""Looks at a number that tell no more than the guard on its type."""

CALLS_NO_METHODS = (*READS_TYPE_ONLY, ValueRead.IDENTITY)
"""Looks at an object that ask its class for no special method."""

DISTINGUISHES_EQUAL_OBJECTS = (id, operator.is_, operator.is_not)
"""Functions to which equal values may be different ones."""

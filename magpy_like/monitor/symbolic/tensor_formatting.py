"""Tensors of one element that are formatted as text: as the numbers that they hold.

That is what torch makes of ``f"{loss:.3f}"``. The number stays one of the graph, so that the text
is known by an expression until something looks at it: the program splits there, and not before.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.monitor.calls.lifted_calls import finish_computed
from magpy_like.monitor.operator_graph.graph_numbers import REAL_NUMBERS
from magpy_like.monitor.symbolic.lifted_text import formatted, percent
from magpy_like.native import frame_set_operand, lookup_in_type
from magpy_like.native.instance_checks import is_instance

if TYPE_CHECKING:
    from collections.abc import Callable

    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step

    Token = tuple[Callable[..., Any], Any]


def _has_number(value: Any) -> bool:
    """Whether torch formats a tensor as the number that it holds."""
    if type(value) is not torch.Tensor or value.dim() or value.dtype not in REAL_NUMBERS:
        return False
    return all(lookup_in_type(torch.Tensor, name) is own for name, own in _OWN.items())


_OWN = {name: lookup_in_type(torch.Tensor, name) for name in ("__format__", "__float__", "item")}
"""How torch formats a tensor, unless somebody else has put other methods there."""


def _number(context: Context, tensor: torch.Tensor, read: Any) -> Any:
    """What ``read(tensor)`` gives, as a number of the graph; which no program has called.

    Raises:
        Split: the tensor is of unknown origin.
    """
    value = read(tensor)
    context.account()
    number = context.lifted.tensors.lift_item(read, (tensor,), value)
    context.account()
    context.watch_numbers()
    return number


def _is_seen(context: Context) -> bool:
    return context.isolation.branch_run is None and not context.recording.running.depth


def format_field(context: Context, step: Step) -> Token | None:
    """A field of an f-string is about to be made: what to do with its text, None if no number is
    formatted there."""
    specified = bool(step.oparg & 4)
    depth, specification = (2, step.stack[-1]) if specified else (1, "")
    value = step.stack[-depth]
    if step.oparg & 3 or not _has_number(value) or not _is_seen(context):
        return None
    number = _number(context, value, torch.Tensor.item)
    frame_set_operand(step.frame, depth, number)
    return finish_computed, (formatted, (number, 0, specification))


def format_percent(context: Context, step: Step) -> Token | None:
    """``text % values`` is about to be computed: what to do with its result, None for a program
    that goes on as it is written."""
    form, given = step.stack[-2:]
    values = given if type(given) is tuple else (given,)
    if type(form) is not str or not _is_seen(context):
        return None
    if not any(is_instance(value, torch.Tensor) for value in values):
        return None
    kinds = _kinds(form)
    if kinds is None or len(kinds) != len(values):
        return None
    reads = [_READS.get(k) if is_instance(v, torch.Tensor) else None
             for k, v in zip(kinds, values, strict=True)]  # fmt: skip
    for value, read in zip(values, reads, strict=True):
        plain = type(value) in (int, float, str) and read is None
        if not plain and not (_has_number(value) and read is not None):
            return None
    found = tuple(
        value if read is None else _number(context, value, read)
        for value, read in zip(values, reads, strict=True)
    )
    frame_set_operand(step.frame, 1, found)
    return finish_computed, (percent, (form, *found))


def _kinds(form: str) -> list[str] | None:
    """The letters of the fields of a text, in order; None where they take other than one value."""
    kinds = []
    for match in re.finditer(r"%([-#0 +\d.]*)(.?)", form, re.DOTALL):
        if match[2] != "%" or match[1]:
            kinds.append(match[2])
    return kinds if all(kind in _LETTERS for kind in kinds) else None


_READS = dict.fromkeys("eEfFgG", torch.Tensor.__float__)
_LETTERS = frozenset("eEfFgGdisr")


def format_arguments(
    context: Context, step: Step, function: Any, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """``format(*args)`` or ``str.format(*args)`` is about to be called: what it is called with, and
    gives the same text of."""
    tensors = [value for value in args if is_instance(value, torch.Tensor)]
    if not tensors or not all(map(_has_number, tensors)) or not _is_seen(context):
        return args
    if function is not format and not (type(args[0]) is str and _plain_fields(args[0])):
        return args
    given = [
        _number(context, value, torch.Tensor.item) if is_instance(value, torch.Tensor) else value
        for value in args
    ]
    for depth, (before, value) in enumerate(zip(args[::-1], given[::-1], strict=True), start=1):
        if value is not before:
            frame_set_operand(step.frame, depth, value)
    return tuple(given)


def _plain_fields(form: str) -> bool:
    """Whether a text takes its values as they are: no ``!r``, and nothing of theirs."""
    try:
        parts = list(string.Formatter().parse(form))
    except ValueError:
        return False
    return all(
        name is None or (re.fullmatch(r"\w*", name) and not kind and "{" not in (spec or ""))
        for _, name, spec, kind in parts
    )

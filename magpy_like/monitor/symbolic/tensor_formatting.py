"""Tensors of one element formatted as text.

Torch formats them as their number, as in ``f"{loss:.3f}"``. The number stays one of the graph, and
the text is lifted: the program splits where something inspects the text, and not before.
"""

from __future__ import annotations

import opcode
import re
import string
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.bytecode.instruction_facts import formatting
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
    """True if torch formats a tensor as its number."""
    if type(value) is not torch.Tensor or value.dim() or value.dtype not in REAL_NUMBERS:
        return False
    return all(lookup_in_type(torch.Tensor, name) is own for name, own in _OWN.items())


_OWN = {name: lookup_in_type(torch.Tensor, name) for name in ("__format__", "__float__", "item")}
"""The methods by which torch formats a tensor; they may have been replaced."""


def _number(context: Context, tensor: torch.Tensor, read: Any) -> Any:
    """``read(tensor)`` as a number of the graph: a call that the program has not made.

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
    """The token of an f-string's field; None if it formats no tensor as a number."""
    field = formatting(opcode.opname[step.opcode], step.oparg)
    assert field is not None
    depth, specification = (2, step.stack[-1]) if field.is_specified else (1, "")
    value = step.stack[-depth]
    if field.conversion or not _has_number(value) or not _is_seen(context):
        return None
    number = _number(context, value, torch.Tensor.item)
    frame_set_operand(step.frame, depth, number)
    return finish_computed, (formatted, (number, 0, specification))


def format_percent(context: Context, step: Step) -> Token | None:
    """The token of ``text % values``; None if it formats no tensor as a number."""
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
    """The conversions of a text's fields, in order; None if one does not take a single value."""
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
    """The arguments of ``format`` or ``str.format``, with numbers in place of tensors where the
    text is the same."""
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
    """True if a text formats values directly: no ``!r``, no attribute or item."""
    try:
        parts = list(string.Formatter().parse(form))
    except ValueError:
        return False
    return all(
        name is None or (re.fullmatch(r"\w*", name) and not kind and "{" not in (spec or ""))
        for _, name, spec, kind in parts
    )

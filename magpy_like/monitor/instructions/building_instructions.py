"""Construction of containers, functions and texts.

The result is new, but after a split a container under construction may be external.
"""

from __future__ import annotations

import opcode
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import ValueRead
from magpy_like.bytecode.instruction_facts import formatting
from magpy_like.monitor.calls import native_calls, special_methods
from magpy_like.monitor.calls.argument_kinds import holds_tensor
from magpy_like.monitor.instructions.iteration_instructions import iterate
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects import object_addresses
from magpy_like.monitor.symbolic import tensor_formatting
from magpy_like.monitor.symbolic.lists.graph_lists import CarriedList
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def _put_into(context: Context, target: Any) -> None:
    node = context.recording.variables.node(target)
    if node is not None:
        context.recording.mutations.rewrite(node)


def add_element(context: Context, step: Step) -> Token:
    """An element that a comprehension adds to its list or set."""
    value, target = step.stack[-1], step.stack[-step.oparg - 1]
    if opcode.opname[step.opcode] == "SET_ADD":
        context.recording.inspections.record_hash(value)
        _put_into(context, target)
    elif not is_instance(context.recording.operators.lists.get(id(target)), CarriedList):
        native_calls.record_change(context.recording, list.append, target, (target, value), {})
    return None


def add_entry(context: Context, step: Step) -> Token:
    """An entry that a comprehension adds to its dictionary."""
    context.recording.inspections.record_hash(step.stack[-2])
    _put_into(context, step.stack[-step.oparg - 2])
    return None


def extend(context: Context, step: Step) -> Token:
    """The elements of an iterable that are added to a new container, as in ``[*a, *b]``."""
    _put_into(context, step.stack[-step.oparg - 1])
    token = iterate(context, step)
    if opcode.opname[step.opcode] != "LIST_EXTEND":
        context.recording.inspections.record_comparison(step.stack[-1])
    return token


def build_set(context: Context, step: Step) -> Token:
    """``{a, b}``: the members are hashed and compared."""
    for member in step.stack[len(step.stack) - step.oparg :]:
        context.recording.inspections.record_hash(member)
    return None


def build_map(context: Context, step: Step) -> Token:
    """``{key: value}``: the keys are hashed and compared."""
    for key in step.stack[len(step.stack) - 2 * step.oparg :: 2]:
        context.recording.inspections.record_hash(key)
    return None


def format_value(context: Context, step: Step) -> Token:
    """A field of an f-string."""
    field = formatting(opcode.opname[step.opcode], step.oparg)
    assert field is not None
    value = step.stack[-2 if field.is_specified else -1]
    if not is_plain(value):
        if (text := tensor_formatting.format_field(context, step)) is not None:
            return text
        if holds_tensor(value):
            raise Split(SplitReason.TENSOR_VALUE_READ, "formats a tensor as text")
        shows_as_str = not field.is_specified and field.conversion < _ASCII
        if shows_as_str and object_addresses.text_shows_address(value):
            return object_addresses.address_token(context, str, value)
        context.recording.inspections.visit(value, ValueRead.ALL)
        special_methods.read_special_methods(context.recording, value)
        return object_addresses.finish_text, None
    return None


_ASCII = 3
"""The conversion to another text than ``str`` and ``repr``."""


def make_function(context: Context, step: Step) -> Token:
    """A ``def`` or ``lambda`` inside the region."""
    return _adopt_function, None


def _adopt_function(context: Context, _: None, result: Any) -> None:
    context.recording.variables.add_new(result)

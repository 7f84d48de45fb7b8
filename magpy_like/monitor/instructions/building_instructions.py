"""Containers, functions and texts in the making.

What is made is the region's own, but behind a split the container may come from outside.
"""

from __future__ import annotations

import opcode
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import ValueRead
from magpy_like.monitor.calls import native_calls, special_methods
from magpy_like.monitor.calls.argument_kinds import holds_tensor
from magpy_like.monitor.instructions.iteration_instructions import iterate
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects import object_addresses
from magpy_like.monitor.symbolic import tensor_formatting
from magpy_like.monitor.symbolic.gathered_lists import CarriedList
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun


def _put_into(run: MonitorRun, target: Any) -> None:
    node = run.recording.variables.node(target)
    if node is not None:
        run.recording.mutations.rewrite(node)


def add_element(run: MonitorRun, step: Step) -> Token:
    """A comprehension adds to the list or set that it makes."""
    value, target = step.stack[-1], step.stack[-step.oparg - 1]
    if opcode.opname[step.opcode] == "SET_ADD":
        run.recording.inspections.record_comparison(value)
        _put_into(run, target)
    elif not is_instance(run.recording.operators.lists.get(id(target)), CarriedList):
        native_calls.record_change(run.recording, list.append, target, (target, value), {})
    return None


def add_entry(run: MonitorRun, step: Step) -> Token:
    """A comprehension adds to the dictionary that it makes."""
    run.recording.inspections.record_comparison(step.stack[-2])
    _put_into(run, step.stack[-step.oparg - 2])
    return None


def extend(run: MonitorRun, step: Step) -> Token:
    """``[*a, *b]`` and the like: all of an iterable goes into the container in the making."""
    if opcode.opname[step.opcode] != "LIST_EXTEND":
        run.recording.inspections.record_comparison(step.stack[-1])
    _put_into(run, step.stack[-step.oparg - 1])
    return iterate(run, step)


def build_set(run: MonitorRun, step: Step) -> Token:
    """``{a, b}``: the members are hashed and compared."""
    for member in step.stack[len(step.stack) - step.oparg :]:
        run.recording.inspections.record_comparison(member)
    return None


def build_map(run: MonitorRun, step: Step) -> Token:
    """``{key: value}``: the keys are hashed and compared."""
    for key in step.stack[len(step.stack) - 2 * step.oparg :: 2]:
        run.recording.inspections.record_comparison(key)
    return None


def format_value(run: MonitorRun, step: Step) -> Token:
    """A field of an f-string."""
    value = step.stack[-2 if step.oparg & 4 else -1]
    if not is_plain(value):
        if (text := tensor_formatting.format_field(run, step)) is not None:
            return text
        if holds_tensor(value):
            raise Split(SplitReason.TENSOR_VALUE_READ, "formats a tensor as text")
        if step.oparg < _ASCII and object_addresses.is_shown_by_address(value):
            return object_addresses.told(run, str, value)
        run.recording.inspections.visit(value, ValueRead.ALL)
        special_methods.read_special_methods(run.recording, value)
        return object_addresses.finish_text, None
    return None


_ASCII = 3
"""From here on a field has other text than ``str`` and ``repr`` make, or a specification."""


def make_function(run: MonitorRun, step: Step) -> Token:
    """A ``def`` or ``lambda`` inside the region."""
    return _adopt_function, None


def _adopt_function(run: MonitorRun, _: None, result: Any) -> None:
    run.recording.variables.add_new(result)

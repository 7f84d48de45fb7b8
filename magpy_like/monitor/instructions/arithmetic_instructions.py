"""Operators on one value or two: arithmetic, comparisons, membership, identity."""

from __future__ import annotations

import opcode
import operator
import types
from collections import deque
from typing import TYPE_CHECKING

import torch

from magpy_like.annotation import ValueRead
from magpy_like.bytecode.tested_jumps import comparison, tests_result
from magpy_like.monitor.calls import python_operators, read_calls, special_methods
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.instructions.truth_tests import merge_identity_test, test_comparison
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.containers import CONTAINERS, elements
from magpy_like.monitor.symbolic import tensor_formatting
from magpy_like.monitor.symbolic.lists.graph_lists import CarriedList
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def binary(context: Context, step: Step) -> Token:
    """A binary operator such as ``left + right``, in place or not."""
    operation = python_operators.BINARY[step.oparg]
    if operation in python_operators.FORMATS and (
        text := tensor_formatting.format_percent(context, step)
    ):
        return text
    left, right = step.stack[-2:]
    if operation is operator.iadd:
        growing = context.recording.operators.lists.get(id(left))
        if is_instance(growing, CarriedList) and growing.takes(context.recording, right):
            return None
    return python_operators.operate(context, operation, (left, right))


def compare(context: Context, step: Step) -> Token:
    """A comparison such as ``left < right``."""
    operation, operands = python_operators.OPERATORS[comparison(step.oparg)], step.stack[-2:]
    token = python_operators.operate(context, operation, operands)
    on_tensors = any(is_instance(operand, torch.Tensor) for operand in operands)
    if on_tensors and tests_result(opcode.opname[step.opcode], step.oparg):
        if not python_operators.uses_special_methods(operation, operands):
            return test_comparison(context, step, operation, token)
    return token


def unary(context: Context, step: Step) -> Token:
    """``-value``, ``+value`` and ``~value``."""
    return python_operators.operate(
        context, python_operators.UNARY[opcode.opname[step.opcode]], step.stack[-1:]
    )


def contains(context: Context, step: Step) -> Token:
    """``item in container``."""
    item, container = step.stack[-2:]
    merge_identity_test(context, step, 2)
    rec = context.recording
    if is_instance(container, torch.Tensor):
        raise Split(SplitReason.TENSOR_VALUE_READ, "searches a tensor for a value")
    tester = class_lookup.read_class(rec, type(container), "__contains__")
    if is_instance(tester, types.FunctionType):
        return None
    special_methods.read_special_methods(rec, container)
    if not is_plain(item):
        rec.inspections.visit(item, ValueRead.ALL)
    elif type(item) is float and item != item:
        # NaN is equal to no other, and yet found where it is itself.
        others = elements(container) if is_instance(container, CONTAINERS) else ()
        rec.inspections.rely_on_identity(item, *(other for other in others if type(other) is float))
    if is_instance(item, torch.Tensor) and is_instance(container, list | tuple | deque):
        if any(is_instance(e, torch.Tensor) for e in container if e is not item):
            raise Split(
                SplitReason.TENSOR_VALUE_READ, "compares a tensor with the elements of a container"
            )
    read_calls.read_membership(rec, container, item)
    if not is_plain(item):
        rec.inspections.record_comparison((item, container))
    return None


def identity(context: Context, step: Step) -> Token:
    """``left is right``."""
    merge_identity_test(context, step, 2, 1)
    python_operators.record_identity_test(context.recording, *step.stack[-2:])
    return None

"""Truth tests: jumps and ``not``.

A guard cannot check a tensor's truth: the tensor is a constant, or both branches become one
operator, or the truth is speculated on, or the program splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from magpy_like.annotation import ValueRead
from magpy_like.monitor.calls import native_results, special_methods
from magpy_like.monitor.instructions.step import Step, Token, finish_without_result
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.containers import CONTAINERS, NATIVE_TYPES
from magpy_like.monitor.speculation import speculate_on_branch
from magpy_like.monitor.symbolic.lists.graph_lists import CarriedList
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_mutable_class
from magpy_like.split_points import Split

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def merge_identity_test(context: Context, step: Step, *depths: int) -> None:
    """Prepare for a test of the identity of the operands at these depths, which may be tensors."""
    if context.branching is not None:
        context.branching.at_identity_test(context, step, depths)


def test_truth(context: Context, step: Step) -> Token:
    """Record a jump on a value's truth, or ``not``."""
    value = step.stack[-1]
    rec = context.recording
    if is_instance(value, torch.Tensor):
        if rec.constants.hold(value):
            return finish_without_result, native_results.recorded_tensor_call((value,))
        return _branch(context, step, value)
    growing = rec.operators.lists.get(id(value))
    if is_instance(growing, CarriedList) and value:
        return None  # true in any iteration: the list does not become shorter
    if is_instance(value, CONTAINERS):
        rec.inspections.inspect_truth(value)
        special_methods.read_special_methods(rec, value)
    elif type(value) not in NATIVE_TYPES:
        for name in ("__bool__", "__len__"):
            class_lookup.read_class(rec, type(value), name)
        node = rec.variables.node(value)
        if node is not None and not is_mutable_class(type(value)):
            rec.inspections.visit(value, ValueRead.ALL)
    return None


def _branch(context: Context, step: Step, tensor: torch.Tensor) -> Token:
    """Merge both branches into one operator, or else speculate on the tensor's truth."""
    try:
        if context.branching is not None:
            context.branching.at_branch(context, step)
            return None
    except Split as obstacle:
        if context.isolation.branch_run is not None:
            raise
        try:
            speculate_on_branch(context, tensor)
        except Split:
            raise obstacle from None
    else:
        speculate_on_branch(context, tensor)
    return finish_without_result, native_results.recorded_tensor_call((tensor,))

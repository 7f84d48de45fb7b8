"""Where the program goes on by what a value says: jumps, ``not``, and questions of identity.

A tensor's truth is not known to a guard: it is a constant, or becomes an operator with both ways,
or is speculated on before the operator graph runs, or the program splits.
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
from magpy_like.monitor.symbolic.graph_lists import CarriedList
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_mutable_class
from magpy_like.split_points import Split

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def merge_identity_test(context: Context, step: Step, *depths: int) -> None:
    """What comes next depends on which objects these operands are, should they be tensors."""
    if context.branching is not None:
        context.branching.at_identity_test(context, step, depths)


def truth(context: Context, step: Step) -> Token:
    """A jump, or ``not``: what is looked at is whether the value is true."""
    value = step.stack[-1]
    rec = context.recording
    if is_instance(value, torch.Tensor):
        if rec.constants.hold(value):
            return finish_without_result, native_results.recorded_tensor_call((value,))
        return _branch(context, step, value)
    growing = rec.operators.lists.get(id(value))
    if is_instance(growing, CarriedList) and value:
        return None  # in any round, for it does not become shorter
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
    """Both ways become one operator, or else which one it goes is speculated on."""
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

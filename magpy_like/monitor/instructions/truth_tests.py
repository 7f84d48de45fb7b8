"""Truth tests: jumps, ``not``, and comparisons that test their own results.

A guard cannot check a tensor's truth: the tensor is a constant, or both branches become one
operator, or the truth is speculated on, or the program splits.
"""

from __future__ import annotations

import dis
import opcode
import types
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import ValueRead
from magpy_like.bytecode.tested_jumps import TESTS, comparison, tests_result
from magpy_like.monitor.calls import special_methods
from magpy_like.monitor.calls.python_operators import OPERATORS
from magpy_like.monitor.calls.results import native_results
from magpy_like.monitor.instructions.step import Step, Token, finish_without_result
from magpy_like.monitor.objects import class_lookup
from magpy_like.monitor.objects.containers import CONTAINERS, NATIVE_TYPES
from magpy_like.monitor.speculation import speculate_on_branch
from magpy_like.monitor.symbolic.lists.graph_lists import CarriedList
from magpy_like.native import frame_set_operand
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_mutable_class, overrides_torch_function
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

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


def decide(step: Step, truth: bool) -> None:
    """Have a test find ``truth``, whatever its operand is."""
    if step.comparison is None:
        frame_set_operand(step.frame, 1, truth)
        return
    operands = _OPERANDS[comparison(step.comparison.oparg), truth]
    for depth, operand in enumerate(reversed(operands), start=1):
        frame_set_operand(step.frame, depth, operand)


_OPERANDS: dict[tuple[str, bool], tuple[int, int]] = {
    (symbol, truth): next(
        pair for pair in ((0, 0), (0, 1), (1, 0)) if OPERATORS[symbol](*pair) is truth
    )
    for symbol in dis.cmp_op
    for truth in (False, True)
}
"""Numbers of which a comparison has a given truth."""


def repeat(step: Step, recorded_truth: Callable[[Step], bool]) -> None:
    """Have an instruction find the recorded truth again if it tests tensors in order to jump."""
    name = opcode.opname[step.opcode]
    if name in TESTS and is_instance(step.stack[-1], torch.Tensor):
        decide(step, recorded_truth(step))
    elif tests_result(name, step.oparg):
        if any(is_instance(operand, torch.Tensor) for operand in step.stack[-2:]):
            decide(replace(step, comparison=step), recorded_truth(step))


def test_comparison(context: Context, step: Step, operation: Any, token: Token) -> Token:
    """Record the truth of a comparison of tensors, which the instruction tests itself.

    The comparison runs here; then the instruction is like a test of its result.

    Args:
        token: the token of the comparison alone.
    """
    operands = step.stack[-2:]
    if any(overrides_torch_function(operand) for operand in operands):
        raise Split(SplitReason.DATA_DEPENDENT_BRANCH, "branches on a tensor's value")
    try:
        result = operation(*operands)
    except Exception:
        return token  # the instruction raises it again
    if token is not None:
        finish, payload = token
        finish(context, payload, result)
    test = replace(step, stack=(*step.stack[:-2], result), comparison=step)
    tested = test_truth(context, test)
    if tested is None and context.isolation.branch_run is not None:
        return None  # `decide` has been called
    decide(test, bool(result))
    if tested is not None:
        finish, payload = tested
        finish(context, payload, None)
    context.account()
    return None


def check_tested_result(context: Context, frame: types.FrameType, value: Any) -> None:
    """Record the truth of what a Python function has returned to the comparison that ``frame``
    executes, if that tests its result.

    Raises:
        Split: it is a tensor.
    """
    code, offset = frame.f_code.co_code, frame.f_lasti
    if value is NotImplemented or not tests_result(opcode.opname[code[offset]], code[offset + 1]):
        return
    if is_instance(value, torch.Tensor):
        raise Split(SplitReason.DATA_DEPENDENT_BRANCH, "branches on a tensor's value")
    test_truth(context, Step(frame, code[offset], code[offset + 1], offset, (value,)))


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

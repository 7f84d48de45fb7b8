"""Calls: with arguments on the stack or in containers, and of context managers.

A native function that calls Python code is replaced on the stack by a function that the monitor
follows, where the record depends on those calls.
"""

from __future__ import annotations

import opcode
import types
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import ValueRead, lookup
from magpy_like.monitor.call_operands import call_operands, spread_callee_depth
from magpy_like.monitor.calls import (
    call_dispatch,
    compiled_callees,
    read_calls,
    special_methods,
)
from magpy_like.monitor.calls.argument_kinds import is_followed
from magpy_like.monitor.calls.call_inputs import DISTINGUISHES_EQUAL_OBJECTS
from magpy_like.monitor.calls.polyfills import polyfill, variadic
from magpy_like.monitor.calls.warning_and_log_calls import fixed_call
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.instructions.truth_tests import merge_identity_test
from magpy_like.monitor.objects import class_lookup, locks
from magpy_like.monitor.objects.containers import overrides_iteration
from magpy_like.monitor.operator_graph import profiler_labels
from magpy_like.monitor.symbolic import tensor_formatting, varying_reads
from magpy_like.monitor.symbolic.lists import loop_ranges
from magpy_like.monitor.symbolic.numbers.lifted_number_rules import restore_originals
from magpy_like.native import NULL, frame_set_operand
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def call(context: Context, step: Step) -> Token:
    """``function(*args, **kwargs)`` with each argument on the stack."""
    count = step.oparg
    operands = call_operands(opcode.opname[step.opcode], count, step.stack)
    depth, args = operands.depth, operands.args
    function = _compiled_inside(context, step, depth, operands.function)
    if count == 1 and (function is id or function is hash):
        merge_identity_test(context, step, 1)
    if context.lifted and any(function is told for told in DISTINGUISHES_EQUAL_OBJECTS):
        restore_originals(context, step, count)
    names = context.keyword_names(step)
    kwargs: dict[str, Any] = {}
    if names:
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        args = args[:split]
    if (function is format or function is str.format) and not kwargs:
        args = tensor_formatting.format_arguments(context, step, function, tuple(args))
    loop = any(function is head for head in loop_ranges.LOOP_FUNCTIONS)
    if loop and loop_ranges.begin_loop(context, step, function, args, kwargs):
        return None
    if (
        loop
        and (token := loop_ranges.record_range(context, step, function, args, kwargs)) is not None
    ):
        return token
    for value in args if loop else ():
        context.recording.operators.inspect_list(value)
    other = polyfill(function, tuple(args), kwargs)
    if other is not None:
        call_dispatch.guard_callable_identity(context.recording, function)
        frame_set_operand(step.frame, depth, other)
        return None
    return _call(context, step, depth, function, args, kwargs)


def _call(
    context: Context,
    step: Step,
    depth: int,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Token:
    """Begin a call of the function at a depth of the stack."""
    context.replacement_call = None
    token = call_dispatch.call(context, function, args, kwargs)
    if context.replacement_call is not None:
        frame_set_operand(step.frame, depth, fixed_call(context.replacement_call))
    return token


def call_spread(context: Context, step: Step) -> Token:
    """``function(*args, **kwargs)`` with a tuple and a dictionary on the stack."""
    stack = step.stack
    depth = spread_callee_depth(step.oparg)
    args, kwargs = stack[-2:] if step.oparg & 1 else (stack[-1], {})
    function = _compiled_inside(context, step, depth, stack[-depth])
    plain = is_instance(args, tuple | list) and is_instance(kwargs, dict)
    if not plain or overrides_iteration(args):
        # The instruction iterates over the arguments; a function in between receives them.
        varying_reads.substitute(context, args)
        varying_reads.substitute(context, kwargs)
        read_calls.iterate(context.recording, args)
        context.recording.inspections.visit(kwargs, ValueRead.ELEMENTS)
        if not is_followed(function):
            frame_set_operand(step.frame, depth, variadic(function))
        return None
    for given in (args, kwargs):
        varying_reads.substitute(context, given)
        context.recording.inspections.visit(given, ValueRead.ELEMENTS)
        special_methods.read_special_methods_of_class(context.recording, type(given))
    loop = any(function is head for head in loop_ranges.LOOP_FUNCTIONS)
    if loop and loop_ranges.begin_loop(context, step, function, tuple(args), kwargs):
        return None
    if not is_followed(function):
        for value in (*args[1:], *kwargs.values()):
            context.recording.operators.inspect_list(value)
    other = polyfill(function, tuple(args), kwargs)
    if other is not None:
        call_dispatch.guard_callable_identity(context.recording, function)
        frame_set_operand(step.frame, depth, other)
        return None
    return _call(context, step, depth, function, tuple(args), dict(kwargs))


def _compiled_inside(context: Context, step: Step, depth: int, function: Any) -> Any:
    """The wrapped function of a compiled one, which it replaces on the stack; else ``function``."""
    target = compiled_callees.read_wrapped(context, function)
    if target is function and type(function) is types.MethodType:
        inner = compiled_callees.read_wrapped(context, function.__func__)
        if inner is not function.__func__:
            target = types.MethodType(inner, function.__self__)
    if target is not function:
        frame_set_operand(step.frame, depth, target)
    return target


def enter_context(context: Context, step: Step) -> Token:
    """``with manager``: both methods are looked up before either runs."""
    manager = step.stack[-1]
    rec = context.recording
    if locks.acquire_uncontended(rec, manager, step.code):
        return None
    for name in ("__enter__", "__exit__"):
        method = class_lookup.read_class(rec, type(manager), name)
        if method is not NULL and not is_instance(method, types.FunctionType):
            annotation = lookup(method)
            if annotation is None or not annotation.pure_closure:
                raise Split(
                    SplitReason.NATIVE_CONTEXT_MANAGER,
                    f"enters a {type(manager).__qualname__}, a native context manager",
                )
    return profiler_labels.enter(context, manager) if profiler_labels.is_label(manager) else None


def leave_with_error(context: Context, step: Step) -> Token:
    """The call of a manager's ``__exit__`` with an exception."""
    label = profiler_labels.label_of_exit(step.stack[-4])
    return None if label is None else profiler_labels.leave(context, label)

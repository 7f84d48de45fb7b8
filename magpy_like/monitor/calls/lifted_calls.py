"""Native calls with lifted numbers, flags or lists: computations, folds and list calls.

A result that can be lifted becomes a value of the symbolic twin. Otherwise the guard repeats the
call and compares the results, or the operands are specialized.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import ValueRead
from magpy_like.monitor.calls.argument_kinds import holds_tensor
from magpy_like.monitor.calls.call_inputs import visit_input
from magpy_like.monitor.calls.results.native_results import NativeCall, finish_pure
from magpy_like.monitor.calls.unreported_native_reads import guard_cache_keys
from magpy_like.monitor.objects.containers import CONTAINERS
from magpy_like.monitor.process_state import RepeatedLookUp
from magpy_like.monitor.symbolic.expressions import is_liftable
from magpy_like.monitor.symbolic.lists import varying_lists
from magpy_like.monitor.symbolic.numbers.cached_look_ups import (
    can_be_looked_up,
    may_be_looked_up,
    note_call,
)
from magpy_like.monitor.symbolic.numbers.number_folds import FOLDS
from magpy_like.monitor.symbolic.numbers.pure_number_calls import (
    GUARDED_RESULTS,
    NUMPY_FUNCTIONS,
    LiftedCall,
    as_lifted_call,
    is_number_sequence,
    is_python_function,
    lifted_call,
    with_result_type,
)
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split, UnguardableRead

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


@contextlib.contextmanager
def as_unguardable_read() -> Iterator[None]:
    """Turn a ``Split`` about a result into an ``UnguardableRead``.

    The instruction has only computed, so the segment can end before it.
    """
    try:
        yield
    except Split as split:
        raise UnguardableRead(*split.cause) from None


def handle_varying_list_call(context: Context, call: NativeCall) -> Any:
    """A native call that reads a list of varying length, or its length."""
    arguments = (*call.args, *call.kwargs.values())
    if not varying_lists.has_varying_lists(context) or not any(
        type(v) in varying_lists.KINDS for v in arguments
    ):
        return NotImplemented
    if call.operation is len and len(arguments) == 1:
        token = varying_lists.read_length(context, arguments[0])
        return NotImplemented if token is None else token
    if call.operation in varying_lists.POPS:
        token = varying_lists.pop(context, call.operation, *arguments)
        return NotImplemented if token is None else token
    is_lifted = functools.partial(_is_lifted_operand, context)
    if any(is_instance(value, CONTAINERS) and not is_lifted(value) for value in arguments):
        return NotImplemented  # its elements are guarded
    function = as_lifted_call(call.annotation, call.operation, call.args, call.kwargs, is_lifted)
    if function is None or not any(type(v) in varying_lists.KINDS for v in function[1]):
        return NotImplemented
    for value in arguments:
        context.recording.inspections.visit(value, ValueRead.TYPE)
    if is_instance(call.operation, NUMPY_FUNCTIONS):
        return context.suspension.until(finish_list_call, function)
    return finish_list_call, function


def _is_lifted_operand(context: Context, value: Any) -> bool:
    if type(value) in varying_lists.KINDS:
        return varying_lists.list_contents(context.recording, value) is not None
    return context.lifted.is_lifted(value)


def finish_list_call(context: Context, payload: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    """Lift, or guard, the result of a call with lists of varying length."""
    operation, operands = payload
    lifted, rec = context.lifted, context.recording
    parts = tuple(
        varying_lists.list_contents(rec, v) or lifted.expression(v) or v for v in operands
    )
    with as_unguardable_read():
        if is_liftable(result):
            expression = lifted.arithmetic.expression(
                with_result_type(operation, operands, result), operands, parts
            )
            return lifted.lift(result, expression)
        if type(result) in GUARDED_RESULTS:
            lifted.guards.require_result(operation, operands, result, parts)
        else:
            lifted.specialize(operands)
            for value in operands:
                rec.inspections.visit(value, ValueRead.ALL)
    rec.variables.add_new(result)
    return None


def handle_fold(context: Context, call: NativeCall) -> Any:
    """A fold, such as ``sum`` or ``max``, of a container with lifted numbers."""
    operation, args = call.operation, call.args
    if (
        operation in FOLDS
        and not call.kwargs
        and context.lifted.identities.holds_lifted(args)
        and context.lifted.folds.can_compute(operation, args)
    ):
        visit_input(
            context.recording, args[0]
        )  # it may be external and have constant elements, too
        return finish_fold, (operation, args)
    return NotImplemented


def finish_fold(context: Context, folded: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    """Lift the result of a fold."""
    with as_unguardable_read():
        return context.lifted.folds.compute(*folded, result)


def handle_computation(context: Context, call: NativeCall) -> Any:
    """A computation on lifted numbers, flags or strings."""
    if not context.lifted or context.recording.running.depth:
        return NotImplemented
    arguments = (*call.args, *call.kwargs.values())
    function = as_lifted_call(
        call.annotation, call.operation, call.args, call.kwargs, context.lifted.is_lifted
    )
    if function is not None:
        for value in arguments:
            visit_input(context.recording, value)
        if is_instance(call.operation, NUMPY_FUNCTIONS):
            # NumPy's functions are partly Python code.
            return context.suspension.until(finish_computed, function)
        return finish_computed, function
    if call.on_graph and is_python_function(call.operation) and not holds_tensor(arguments):
        context.lifted.specialize(arguments)
    return NotImplemented


def handle_cached_call(context: Context, call: NativeCall) -> Any:
    """A call of a function with a cache whose arguments hold lifted numbers."""
    rec, operation = context.recording, call.operation
    if not context.lifted or not is_instance(operation, functools._lru_cache_wrapper):
        return NotImplemented
    if rec.running.depth or rec.variables.is_new_object(operation):
        return NotImplemented
    if not may_be_looked_up(operation):
        return NotImplemented
    function = lifted_call(
        operation, call.args, call.kwargs, context.lifted.is_lifted, constants=True
    )
    if function is None or not context.lifted.guards.are_computable_at_entry(function[1]):
        return NotImplemented
    arguments = (*call.args, *call.kwargs.values())
    for value in arguments:
        visit_input(rec, value)
    guard_cache_keys(rec, arguments)
    return context.suspension.until(finish_cached, (call, *function))


def finish_cached(
    context: Context, payload: tuple[NativeCall, LiftedCall, tuple[Any, ...]], result: Any
) -> Any:
    """Lift the numbers in the result of a function with a cache; specialize the arguments if it
    holds other things than numbers and text."""
    done, function, operands = payload
    if not can_be_looked_up(result):
        context.lifted.specialize(operands)
        return finish_pure(context, done, result)
    note_call(done.operation, done.args, done.kwargs, result)
    look_up, parts, lifted = context.lifted.look_ups.lift(function, operands, result)
    context.recording.state.cached_calls.append(RepeatedLookUp(look_up, parts, lifted))
    context.recording.variables.add_new(lifted)
    return lifted


def finish_computed(context: Context, payload: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    """Lift, or guard, the result of a computation on numbers and text.

    A result that cannot be lifted must be the same in later calls. The guard checks that if it can
    repeat the computation; otherwise the operands are specialized.

    Raises:
        UnguardableRead: the result depends on a number that is unknown before the region runs.
    """
    operation, operands = payload
    with as_unguardable_read():
        if is_liftable(result):
            return context.lifted.arithmetic.compute(
                with_result_type(operation, operands, result), operands, result
            )
        if is_number_sequence(operation, result):
            parts = context.lifted.arithmetic.compute_sequence(operation, operands, result)
            context.recording.variables.add_new(parts)
            return parts
        if operation in _TRUTH_QUERIES:
            context.lifted.guards.require_truth(_TRUTH_QUERIES[operation], operands)
        elif type(result) in GUARDED_RESULTS:
            context.lifted.guards.require_result(operation, operands, result)
        else:
            context.lifted.specialize(operands)
    context.recording.variables.add_new(result)
    return None


_TRUTH_QUERIES: dict[Any, Any] = {
    operator.lt: operator.lt, operator.le: operator.le, operator.gt: operator.gt,
    operator.ge: operator.ge, operator.eq: operator.eq, operator.ne: operator.ne,
    operator.truth: operator.truth, operator.not_: operator.truth, bool: operator.truth,
}  # fmt: skip
"""Functions of numbers whose results decide control flow, with an equivalent condition."""

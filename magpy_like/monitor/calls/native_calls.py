"""Native calls: handled by annotation, recorded when they have returned (Figure 12)."""

from __future__ import annotations

import collections
import contextvars
import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import Annotation, RelationKind, ValueRead, lookup
from magpy_like.annotation.operator_facts import Results, operator_facts
from magpy_like.monitor import random_draws
from magpy_like.monitor.calls import delegating_generators, special_methods
from magpy_like.monitor.calls.argument_kinds import (
    describe,
    has_conversion_methods,
    is_followed,
    is_python_instance,
    tensors_in,
)
from magpy_like.monitor.calls.backward_code import Examination, outside_dependence
from magpy_like.monitor.calls.call_inputs import (
    CALLS_NO_METHODS,
    COMPARES_OBJECTS,
    DISTINGUISHES_EQUAL_OBJECTS,
    READS_ELEMENTS,
    specialize_input,
    visit_input,
)
from magpy_like.monitor.calls.lifted_calls import (
    finish_computed,
    finish_fold,
    finish_list_call,
)
from magpy_like.monitor.calls.operator_body import add_object_inputs, record_references
from magpy_like.monitor.calls.operator_closures import Closure, close_over
from magpy_like.monitor.calls.read_calls import inputs_of, record_read_call
from magpy_like.monitor.calls.results.native_results import (
    NativeCall,
    finish_operator,
    finish_pure,
    finish_read,
)
from magpy_like.monitor.calls.special_calls import (
    SPECIAL_CALL_RULES,
    finish_item,
)
from magpy_like.monitor.calls.unreported_native_reads import (
    READS_ATTRIBUTES,
    check_tensor_reads,
    guard_cache_keys,
    guard_numpy_error_state,
    orders_by_key,
    read_attributes_inside,
    read_callback_inputs,
)
from magpy_like.monitor.calls.warning_and_log_calls import (
    SHOWN_ARGUMENTS,
    repeatable_call,
    reports_caller,
)
from magpy_like.monitor.calls.write_calls import record_write
from magpy_like.monitor.objects import attributes, object_addresses
from magpy_like.monitor.objects.containers import any_hashes_in_python, hashes_in_python
from magpy_like.monitor.operator_graph.data_dependent_errors import may_succeed
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.lists.varying_lists import record_mutation
from magpy_like.monitor.symbolic.symbolic_twin import hint
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import EffectInsideOperator, Split
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import custom_function_calls
from magpy_like.torch_compat.dispatch import function_mode_count
from magpy_like.torch_compat.functorch import grad_and_value_impl, grad_impl, vmap_impl
from magpy_like.torch_compat.operators import make_subclass

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


_TRANSFORMS = (
    vmap_impl,
    grad_impl,
    grad_and_value_impl,
)
"""The implementations of the transforms of ``torch.func``."""

_FOLLOWED_OPERATORS = (*custom_function_calls, *_TRANSFORMS)
"""Custom autograd functions and transformed functions: one operator each, but the monitor follows
their Python code and records its reads."""

_UNCOMPILABLE = {
    torch.Tensor.requires_grad_: "changes which tensors require gradients",
    make_subclass: "creates a parameter",
    **dict.fromkeys(
        (torch.Tensor.resize_, torch.Tensor.resize_as_, torch.resize_as_),
        "changes a tensor's storage",
    ),
}
"""Operators that need state of earlier operators, which no compiled graph keeps, and the reason.

A graph with one of them is interpreted, operator by operator."""

_CALLS_ARGUMENTS_LATER = {torch.autograd.grad, *_UNCOMPILABLE, *_FOLLOWED_OPERATORS}
"""Operators that may call their arguments in every run of the graph."""

_REPEATABLE_CHANGES = {
    list.append,
    list.extend,
    set.add,
    collections.deque.append,
    collections.deque.appendleft,
}
"""Changes that can be repeated on any contents of the container."""


def begin_native_call(
    context: Context,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Token | None:
    """Record an annotated operation that is about to run (section 5.3.1).

    Returns:
        As ``call_dispatch.call``.

    Raises:
        Split: the operation is dynamic, or reads a value that a guard cannot check.
        EffectInsideOperator: it has an effect inside an operator.
    """
    rec = context.recording
    special_methods.check_tensor_operator(operation, args)
    if (confined := context.isolation.current()) is not None:
        if _is_redundant_set_call(rec, operation, args):
            membership = lookup(set.__contains__)
            assert membership is not None
            return begin_native_call(context, membership, set.__contains__, args, {})
        confined.check_call(annotation, operation, args, kwargs)
    on_graph = annotation.as_op_node and not rec.running.depth
    call = NativeCall(annotation, operation, args, kwargs, on_graph)
    for rule in SPECIAL_CALL_RULES:
        token = rule(context, call)
        if token is not NotImplemented:
            return token
    args, kwargs = call.args, call.kwargs
    _check_operation(context, annotation, operation, args, kwargs)
    relation = annotation.output.relation
    if relation is not None and relation.access == "write" and args and is_plain(args[0]):
        context.lifted.specialize(args[1:])  # Python code sets it, such as the integer of a UUID
    if (
        relation is not None
        and relation.access == "write"
        and record_write(context, annotation, args, kwargs)
    ):
        return finish_pure, call
    if annotation.calls:
        read_callback_inputs(rec, annotation, operation, args, kwargs)
    if getattr(operation, "__name__", "") in READS_ATTRIBUTES:
        for value in (*args, *kwargs.values()):
            read_attributes_inside(rec, operation, value)
    changed = _read_inputs(context, call)
    # Effects come last: if the program splits at this call, the call runs natively after the mock,
    # which must not repeat its effects.
    _record_effects(context, call, changed)
    if relation is not None and relation.access == "read":
        record_read_call(context, annotation, args, kwargs)
    if not on_graph:
        _record_comparisons(rec, call)
    else:
        rec.running.callees = []
        if operation in _CALLS_ARGUMENTS_LATER:
            call.args = tuple(close_over(rec, value) for value in args)
            call.kwargs = {name: close_over(rec, value) for name, value in kwargs.items()}
    if annotation.as_op_node:
        return _begin_operator(context, call)
    token = _begin_plain_call(context, call)
    if operation is delegating_generators.THROW:
        return delegating_generators.follow_waiting(context, args[0], token)
    return token


def _is_redundant_set_call(rec: Recording, operation: Any, args: tuple[Any, ...]) -> bool:
    """True if ``set.add`` or ``set.discard`` changes nothing in an external set.

    Then it is only a membership test. Modules call it with the name of a buffer whenever they
    replace the buffer.
    """
    if operation not in _MEMBERSHIP_AFTER or len(args) != 2 or type(args[1]) is not str:
        return False
    if (
        type(args[0]) is not set
        or rec.variables.node(args[0]) is None
        or any_hashes_in_python(args[0])
    ):
        return False
    return (args[1] in args[0]) is _MEMBERSHIP_AFTER[operation]


_MEMBERSHIP_AFTER = {set.add: True, set.discard: False}
"""Whether an element is in the set after the call."""


def _check_operation(
    context: Context,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Check the operation as a whole, and record its reads besides the arguments.

    Raises:
        EffectInsideOperator, Split: it is dynamic, or has an effect inside an operator.
    """
    rec = context.recording
    if annotation.replay:
        if rec.running.depth:
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR,
                f"calls {describe(operation)} inside an operator",
                describe(operation),
            )
    elif not annotation.as_op_node:
        if not annotation.pure_closure:
            name = describe(operation)
            raise Split(*annotation.split_cause(name, SplitReason.DYNAMIC_OPERATION))
        check_tensor_reads(context, annotation, operation, args, kwargs)
    if is_instance(operation, np.ufunc | ARRAY_FUNCTION):
        guard_numpy_error_state(rec)
    if operation in _CLASS_TESTS and args and is_instance(args[0], torch.Tensor):
        if args[-1] is not torch.Tensor:
            rec.inspections.check_class_is_fixed(args[0])
    if operation in special_methods.CLASS_CHECKS:
        special_methods.read_class_checks(rec, operation, args)
    if operation in _SIGNATURE_READERS and args:
        attributes.read_signature(rec, args[0])
    if (rec.writes.data_replaced or rec.inspections.possible_aliases) and annotation.as_op_node:
        try:
            _check_used_tensors(rec, annotation, operation, args, kwargs)
        except Split as split:
            if not rec.running.depth:
                raise
            # The operator around it does the same where it runs as it is.
            cause = split.cause
            raise EffectInsideOperator(cause.reason, cause.detail, cause.subject) from split


_DETACHES = (torch.Tensor.data, torch.Tensor.detach, torch.detach)
_GIVES_TO_FUNCTION = "gives a tensor that a branch may return to a custom function"


def _check_used_tensors(
    rec: Recording,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Check the tensors that an operator is about to use.

    The code of a custom function may change its arguments in any way, while torch holds them.

    Raises:
        Split: it writes to one whose data the program has set, or with whose memory a branch may
            return one; or it uses one whose data has another form now.
    """
    _check_written_tensors(rec, annotation, args, kwargs)
    if operation in custom_function_calls:
        for tensor in tensors_in(args):
            rec.inspections.check_write(tensor, _GIVES_TO_FUNCTION)
    if rec.writes.data_replaced and torch.is_grad_enabled() and operation not in _DETACHES:
        for tensor in tensors_in((args, kwargs)):
            rec.writes.check_form_at_use(tensor)


def _check_written_tensors(
    rec: Recording, annotation: Annotation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    for position, value in inputs_of(args, kwargs):
        for tensor in tensors_in(value) if annotation.writes_to(position, args) else ():
            rec.writes.check_replaced_data(tensor)
            rec.inspections.check_write(tensor)


_CLASS_TESTS = {isinstance, type}
_SIGNATURE_READERS = {inspect.signature, inspect.getfullargspec, typing.get_type_hints}


def _read_inputs(context: Context, call: NativeCall) -> list[Any]:
    """Record the reads of the arguments, to the depth that the annotation declares.

    Returns:
        The arguments that the call changes in place, without tensors.
    """
    rec, operation, on_graph = context.recording, call.operation, call.on_graph
    by_key = orders_by_key(operation, call.kwargs)
    relation = call.annotation.output.relation
    subscripts = relation is not None and relation.kind is RelationKind.ITEM
    changed = []
    moves_elements = (
        operation in _CALLS_PER_ELEMENT and bool(call.args) and is_followed(call.args[0])
    )
    is_of_sets = getattr(operation, "__objclass__", None) in (set, frozenset) or operation is bool
    for position, value in inputs_of(call.args, call.kwargs):
        properties = call.annotation.input(position)
        if (
            context.lifted
            and not (on_graph or moves_elements)
            and position not in SHOWN_ARGUMENTS.get(operation, ())
        ):
            specialize_input(context, operation, properties.value_read, value)
        elif on_graph and type(value) is str and context.lifted:
            context.lifted.specialize(value)  # an operator's mode, not a value
        if is_plain(value):
            if operation in DISTINGUISHES_EQUAL_OBJECTS:
                rec.inspections.rely_on_identity(value)
            continue
        if operation is set.pop or (properties.value_read in READS_ELEMENTS and not is_of_sets):
            object_addresses.guard_set_order(rec, value)
        if properties.value_read not in CALLS_NO_METHODS or subscripts:
            special_methods.read_special_methods(rec, value)
        if properties.in_place and not is_instance(value, torch.Tensor):
            changed.append(value)
        elif on_graph:
            if has_conversion_methods(value):
                raise Split(
                    SplitReason.UNSUPPORTED_OPERAND,
                    f"passes a {type(value).__qualname__} to a tensor operator",
                )
            if rec.inspections.length_varies(value):
                raise Split(
                    SplitReason.VARYING_LIST, "passes a list whose length varies to an operator"
                )
            visit_input(rec, value)
        elif by_key and position != "key":
            rec.inspections.visit(value, ValueRead.ELEMENTS)
        else:
            rec.inspections.visit(value, properties.value_read)
    return changed


def _record_comparisons(rec: Recording, call: NativeCall) -> None:
    """Record which arguments the call compares, now that their contents have been read."""
    for position, value in inputs_of(call.args, call.kwargs):
        if call.annotation.input(position).value_read in COMPARES_OBJECTS:
            rec.inspections.record_comparison(value)


_CALLS_PER_ELEMENT = {
    map, filter, itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.filterfalse,
}  # fmt: skip
"""Iterators that pass elements to a function. If it is Python code, the monitor follows it, and
nothing else reads the elements."""


def _record_effects(context: Context, call: NativeCall, changed: list[Any]) -> None:
    rec, operation, args, kwargs = context.recording, call.operation, call.args, call.kwargs
    if call.annotation.replay:
        rec.effects.calls.append(repeatable_call(rec, operation, args, kwargs))
        if reports_caller(operation, args, kwargs):
            context.replacement_call = rec.effects.calls[-1]
    for value in changed:
        record_change(rec, operation, value, args, kwargs)
    name = getattr(operation, "__name__", "")
    if operator_facts(name).results is Results.BY_SIZE and args and call.on_graph:
        if is_instance(args[0], torch.Tensor) and _has_data_dependent_sizes(rec, args[0]):
            context.lifted.tensors.specialize_sizes(args[0])


def _has_data_dependent_sizes(rec: Recording, tensor: torch.Tensor) -> bool:
    twin = rec.sizes.twin_of(tensor)
    unknown = twin is not None and any(hint(size) is None for size in twin.shape)
    return unknown or rec.operators.has_data_dependent_shape(tensor)


def record_change(
    rec: Recording,
    operation: Any,
    value: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Record that ``operation`` is about to change ``value``, an argument, in place."""
    if is_instance(value, contextvars.ContextVar):
        rec.reads.record_context_variable(value)
        rec.mutations.store(rec.variables.constant(value), Relation(RelationKind.CONTEXT), args[-1])
        return
    node = rec.variables.node(value)
    if node is None:
        return
    repeats = operation in _REPEATABLE_CHANGES and not kwargs and not node.rewritten
    if is_instance(value, set) and repeats:
        repeats = not (hashes_in_python(args[1]) or rec.inspections.compares_in_python(node))
    if repeats and (operation is not list.extend or is_instance(args[1], list | tuple)):
        rec.mutations.snapshot(node)
        arguments = tuple(list(a) if operation is list.extend else a for a in args[1:])
        record_mutation(rec, node, operation, arguments)
        rec.refs.in_place(node)
        rec.effects.replays.append((node, operation, arguments))
        node.replays.append(operation)
        return
    rec.mutations.rewrite(node)


def _begin_operator(context: Context, call: NativeCall) -> Token:
    """Begin an operator, which becomes a node of the graph unless it is inside another one."""
    rec, operation = context.recording, call.operation
    if not call.on_graph:
        rec.running.enter()
        rec.running.differentiates |= operation is torch.autograd.grad
    else:
        rec.running.begin(_tensor_inputs(call))
        if operation in _UNCOMPILABLE:
            rec.graph.runs_as_is = f"{describe(operation)} {_UNCOMPILABLE[operation]}"
        elif call.kwargs.get("requires_grad") is True:
            rec.graph.runs_as_is = (
                f"{describe(operation)} creates a leaf tensor that requires gradients"
            )
        elif operation is torch.autograd.grad:
            rec.graph.stays_whole = f"{describe(operation)} computes gradients inside"
        if operation in custom_function_calls:
            add_object_inputs(rec, call.args)
            examination = Examination()
            outside = outside_dependence(call.args[0], examination) if call.args else None
            if outside is not None:
                rec.running.as_is = f"the backward pass of {describe(call.args[0])} {outside}"
            else:
                record_references(rec, examination.references)
            if function_mode_count():
                rec.running.as_is = f"{describe(operation)} runs backward under a default device"
            elif any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
                rec.running.as_is = f"{describe(operation)} runs backward outside autocast"
    if operation in _FOLLOWED_OPERATORS:
        return finish_operator, call
    return context.suspension.until(finish_operator, call)


def _tensor_inputs(call: NativeCall) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of an operator, and in the closures of its functions."""
    yield from tensors_in((call.args, call.kwargs))
    for value in (*call.args, *call.kwargs.values()):
        if is_instance(value, Closure):
            yield from tensors_in(value.operands)


def _begin_plain_call(context: Context, call: NativeCall) -> Token:
    """Begin an annotated call other than an operator.

    Python code in it is not followed: the annotation describes it completely.
    """
    rec, annotation, operation, args, kwargs = (
        context.recording, call.annotation, call.operation, call.args, call.kwargs,
    )  # fmt: skip
    if (annotation.replay or is_instance(operation, _PYTHON_KINDS)) and not (
        _runs_program_code(operation, annotation, args, kwargs)
    ):
        if is_instance(operation, functools._lru_cache_wrapper):
            if rec.variables.is_new_object(operation):
                raise Split(
                    SplitReason.CACHED_FUNCTION,
                    f"calls {describe(operation)}, whose cache it has created",
                    describe(operation),
                )
            guard_cache_keys(rec, (*args, *kwargs.values()))
        return context.suspension.until(finish_pure, call)
    finish = finish_pure if annotation.output.relation is None else finish_read
    return finish, call


ARRAY_FUNCTION = type(np.sum)


_PYTHON_KINDS = (types.FunctionType, functools._lru_cache_wrapper, ARRAY_FUNCTION)
"""Kinds of annotated operations that may be Python code, which is not followed."""


def _runs_program_code(
    operation: Any, annotation: Annotation, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """True if an operation calls code of the program, which the monitor has to follow."""
    if is_instance(operation, ARRAY_FUNCTION):
        return any(map(_may_be_called, (*args, *kwargs.values())))
    inputs = dict(inputs_of(args, kwargs))
    return any(is_followed(inputs.get(position)) for position in annotation.calls)


def _may_be_called(value: Any) -> bool:
    """True if NumPy may call an argument, or a method of it such as ``__array__``."""
    called = types.FunctionType | types.MethodType | functools.partial
    return is_instance(value, called) or is_python_instance(value)


def finish_raising(
    context: Context, finish: Callable[..., None], payload: Any
) -> SplitCause | None:
    """Reset the state that the beginning of a native call has set, after the call has raised.

    Returns:
        The cause of a split if the exception depends on values that the guard does not check. An
        operator that fails for the data of its tensors need not fail in later calls, nor need
        arithmetic that fails for lifted numbers.

    Raises:
        Split: the numbers of failed arithmetic are unknown before the region runs.
    """
    finish, payload = delegating_generators.unwrap(context, finish, payload)
    finish, payload = context.suspension.unwrap(finish, payload)
    if finish in (finish_computed, finish_fold):
        context.lifted.specialize(payload[1])
    elif finish is finish_list_call:
        context.lifted.specialize(payload[1])
        for value in payload[1]:
            context.recording.inspections.visit(value, ValueRead.ALL)
    elif finish is finish_item:
        operation, (tensor,) = payload
        context.lifted.tensors.specialize_sizes(tensor)
        if tensor.numel() == 1:
            detail = f"catches an exception that {describe(operation)} raises for a tensor's value"
            return SplitCause(SplitReason.EXCEPTION_STATE, detail)
    elif is_instance(payload, random_draws.RepeatedCall):
        name = describe(payload.operation)
        detail = f"catches an exception that {name} raises for lifted numbers"
        return SplitCause(SplitReason.EXCEPTION_STATE, detail)
    if finish is finish_operator:
        context.recording.running.leave()
        by_values = (
            payload.on_graph
            and not context.recording.running.depth
            and _may_succeed_later(context, payload)
        )
        context.account()
        if by_values:
            name = describe(payload.operation)
            detail = f"catches an exception that {name} raises for a tensor's values"
            return SplitCause(SplitReason.EXCEPTION_STATE, detail)
    return None


def _may_succeed_later(context: Context, call: NativeCall) -> bool:
    """True if the call of an operator has raised, and may succeed where the guard holds."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    if context.lifted.any_lifted(tuple(leaves)):
        return True
    for value in leaves:
        if is_instance(value, torch.Tensor):
            context.lifted.tensors.specialize_sizes(value)
    return may_succeed(call.operation, call.args, call.kwargs)

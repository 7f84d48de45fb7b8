"""Native calls are judged by their annotation, and recorded when they have returned (Figure 12)."""

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
from magpy_like.monitor.calls import checkpointed_functions, special_methods
from magpy_like.monitor.calls.argument_kinds import (
    describe,
    has_conversion_methods,
    is_followed,
    is_python_instance,
    tensors_in,
)
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
    finish_computed_suspended,
    finish_fold,
    finish_list_call,
    finish_list_call_suspended,
)
from magpy_like.monitor.calls.native_inspections import (
    READS_ATTRIBUTES,
    check_tensor_reads,
    guard_cache_keys,
    guard_numpy_error_state,
    orders_by_key,
    read_attributes_inside,
    read_callback_inputs,
)
from magpy_like.monitor.calls.native_results import (
    NativeCall,
    finish_operator,
    finish_operator_suspended,
    finish_pure,
    finish_read,
    finish_suspended,
)
from magpy_like.monitor.calls.operator_body import add_object_inputs
from magpy_like.monitor.calls.operator_closures import Closure, close_over
from magpy_like.monitor.calls.read_calls import inputs_of, record_read_call
from magpy_like.monitor.calls.replayed_calls import SHOWN_ARGUMENTS, repeatable_call, reports_caller
from magpy_like.monitor.calls.special_calls import (
    SPECIAL_CALL_RULES,
    finish_compiling_query,
    finish_item,
    finish_length,
)
from magpy_like.monitor.calls.write_calls import record_write
from magpy_like.monitor.objects import attributes, object_addresses
from magpy_like.monitor.objects.containers import any_hashes_in_python, hashes_in_python
from magpy_like.monitor.operator_graph.failing_operators import may_succeed
from magpy_like.monitor.operator_graph.operator_graph import MAKES_SEVERAL
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.symbolic_twin import hint
from magpy_like.monitor.symbolic.varying_lists import record_mutation
from magpy_like.monitor.torch_state import autograd_nodes, random_draws
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import EffectInsideOperator, Split
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import apply_custom_function
from magpy_like.torch_compat.dispatch import function_mode_count
from magpy_like.torch_compat.functorch import grad_and_value_impl, grad_impl, vmap_impl
from magpy_like.torch_compat.operators import make_subclass

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]


_CUSTOM_FUNCTION = (
    torch.autograd.Function.apply.__func__,
    apply_custom_function,
)

_TRANSFORMS = (
    vmap_impl,
    grad_impl,
    grad_and_value_impl,
)
"""What ``torch.func`` makes of a function when it is called."""

_FOLLOWED = (*_CUSTOM_FUNCTION, *_TRANSFORMS)
"""A custom autograd function, or a transformed one, is one operator, but its Python code is
followed for what it reads."""

_KEEPS_ALL_AS_IS = {
    torch.Tensor.requires_grad_: "changes which tensors take part in gradients",
    make_subclass: "makes a parameter",
    **dict.fromkeys(
        (torch.Tensor.resize_, torch.Tensor.resize_as_, torch.resize_as_),
        "changes a tensor's storage",
    ),
}
"""Operators that ask of the ones before them what no compiled graph has; the graph runs one by one
then."""

_CALLS_LATER = {torch.autograd.grad, *_KEEPS_ALL_AS_IS, *_FOLLOWED}
"""Operators that may call what they are given at every later call."""

_DEPENDS_ON_NOTHING = {
    list.append,
    list.extend,
    set.add,
    collections.deque.append,
    collections.deque.appendleft,
}
"""Changes that can be repeated on whatever the container holds by then."""


def begin_native_call(
    run: MonitorRun,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Token | None:
    """An annotated operation is about to run (section 5.3.1)."""
    rec = run.recording
    if (confined := run.confined()) is not None:
        if _leaves_a_set(rec, operation, args):
            asks = lookup(set.__contains__)
            assert asks is not None
            return begin_native_call(run, asks, set.__contains__, args, {})
        confined.check_call(annotation, operation, args, kwargs)
    on_graph = annotation.as_op_node and not rec.inside
    call = NativeCall(annotation, operation, args, kwargs, on_graph)
    for rule in SPECIAL_CALL_RULES:
        token = rule(run, call)
        if token is not NotImplemented:
            return token
    args, kwargs = call.args, call.kwargs
    _allow(run, annotation, operation, args, kwargs)
    relation = annotation.output.relation
    if relation is not None and relation.access == "write" and args and is_plain(args[0]):
        run.lifted.specialize(args[1:])  # a value that is written in Python, such as a UUID
    if (
        relation is not None
        and relation.access == "write"
        and record_write(run, annotation, args, kwargs)
    ):
        return finish_pure, call
    if annotation.calls:
        read_callback_inputs(rec, annotation, args, kwargs)
    if getattr(operation, "__name__", "") in READS_ATTRIBUTES:
        for value in (*args, *kwargs.values()):
            read_attributes_inside(rec, operation, value)
    changed = _look_at_inputs(run, call)
    # Effects come last: where the program splits at this call, a mock that had them would do what
    # the call behind it does, too.
    _have_effects(run, call, changed)
    if relation is not None and relation.access == "read":
        record_read_call(run, annotation, args, kwargs)
    if on_graph:
        rec.called = []
        if operation in _CALLS_LATER:
            call.args = tuple(close_over(rec, value) for value in args)
            call.kwargs = {name: close_over(rec, value) for name, value in kwargs.items()}
    return _begin_operator(run, call) if annotation.as_op_node else _begin(run, call)


def _leaves_a_set(rec: Recording, operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether what adds to a set from outside or takes out of it does nothing, as for the name of a
    buffer whenever a module gets another tensor for it: that is a question whether it is in it."""
    if operation not in _IN_SET or len(args) != 2 or type(args[1]) is not str:
        return False
    if type(args[0]) is not set or rec.node(args[0]) is None or any_hashes_in_python(args[0]):
        return False
    return (args[1] in args[0]) is _IN_SET[operation]


_IN_SET = {set.add: True, set.discard: False}
"""Where these do nothing: for what is in it, or is not."""


def _allow(
    run: MonitorRun,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """What the annotation says of the operation as a whole, and what it looks at besides.

    Raises:
        Effect, Split: it is dynamic, or has effects inside an operator.
    """
    rec = run.recording
    if annotation.replay:
        if rec.inside:
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR,
                f"calls {describe(operation)} inside an operator",
                describe(operation),
            )
    elif not annotation.as_op_node:
        if not annotation.pure_closure:
            name = describe(operation)
            raise Split(*annotation.split_cause(name, SplitReason.DYNAMIC_OPERATION))
        check_tensor_reads(run, annotation, operation, args, kwargs)
    if is_instance(operation, np.ufunc | NUMPY):
        guard_numpy_error_state(rec)
    if operation in special_methods.CLASS_CHECKS:
        special_methods.read_class_checks(rec, operation, args)
    if operation in _TELLS_SIGNATURE and args:
        attributes.read_signature(rec, args[0])


_TELLS_SIGNATURE = {inspect.signature, inspect.getfullargspec, typing.get_type_hints}


def _look_at_inputs(run: MonitorRun, call: NativeCall) -> list[Any]:
    """Each argument is looked at to the depth that the annotation says.

    Returns:
        Those that are changed in place, but for tensors.
    """
    rec, operation, on_graph = run.recording, call.operation, call.on_graph
    by_key = orders_by_key(operation, call.kwargs)
    changed = []
    hands_on = operation in _CALLS_EACH and bool(call.args) and is_followed(call.args[0])
    is_of_sets = getattr(operation, "__objclass__", None) in (set, frozenset) or operation is bool
    for position, value in inputs_of(call.args, call.kwargs):
        wanted = call.annotation.input(position)
        if (
            run.lifted
            and not (on_graph or hands_on)
            and position not in SHOWN_ARGUMENTS.get(operation, ())
        ):
            specialize_input(run, operation, wanted.value_read, value)
        elif on_graph and type(value) is str and run.lifted:
            run.lifted.specialize(value)  # an operator's mode, not a value
        if is_plain(value):
            if operation in DISTINGUISHES_EQUAL_OBJECTS:
                rec.require_distinct(value)
            continue
        if operation is set.pop or (wanted.value_read in READS_ELEMENTS and not is_of_sets):
            object_addresses.look_at_order(rec, value)
        if wanted.value_read not in CALLS_NO_METHODS:
            special_methods.read_special_methods(rec, value)
        if wanted.in_place and not is_instance(value, torch.Tensor):
            changed.append(value)
        elif on_graph:
            if has_conversion_methods(value):
                raise Split(
                    SplitReason.UNSUPPORTED_OPERAND,
                    f"passes a {type(value).__qualname__} to a tensor operator",
                )
            if rec.length_varies(value):
                raise Split(
                    SplitReason.VARYING_LIST, "passes a list whose length varies to an operator"
                )
            visit_input(rec, value)
        elif by_key and position != "key":
            rec.visit(value, ValueRead.ELEMENTS)
        else:
            rec.visit(value, wanted.value_read)
        if not on_graph and wanted.value_read in COMPARES_OBJECTS:
            rec.compare(value)
    return changed


_CALLS_EACH = {
    map, filter, itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.filterfalse,
}  # fmt: skip
"""Makers of iterators that give elements to a function: of one in Python the monitor sees what it
does with them, and nothing else looks."""


def _have_effects(run: MonitorRun, call: NativeCall, changed: list[Any]) -> None:
    rec, operation, args, kwargs = run.recording, call.operation, call.args, call.kwargs
    if call.annotation.replay:
        rec.calls.append(repeatable_call(rec, operation, args, kwargs))
        if reports_caller(operation, args, kwargs):
            run.called_instead = rec.calls[-1]
    for value in changed:
        record_change(rec, operation, value, args, kwargs)
    if getattr(operation, "__name__", "") in MAKES_SEVERAL and args and call.on_graph:
        if is_instance(args[0], torch.Tensor) and _data_decides_sizes(rec, args[0]):
            run.lifted.tensors.specialize_sizes(args[0])


def _data_decides_sizes(rec: Recording, tensor: torch.Tensor) -> bool:
    twin = rec.twin_of(tensor)
    unknown = twin is not None and any(hint(size) is None for size in twin.shape)
    return unknown or rec.operators.has_data_dependent_shape(tensor)


def record_change(
    rec: Recording,
    operation: Any,
    value: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """``operation`` is about to change ``value``, one of its arguments, in place."""
    if is_instance(value, contextvars.ContextVar):
        rec.read_context(value)
        rec.store(rec.constant(value), Relation(RelationKind.CONTEXT), args[-1])
        return
    node = rec.node(value)
    if node is None:
        return
    repeats = operation in _DEPENDS_ON_NOTHING and not kwargs and not node.rewritten
    if is_instance(value, set) and repeats:
        repeats = not (hashes_in_python(args[1]) or rec.asks_members(node))
    if repeats and (operation is not list.extend or is_instance(args[1], list | tuple)):
        rec.snapshot(node)
        arguments = tuple(list(a) if operation is list.extend else a for a in args[1:])
        record_mutation(rec, node, operation, arguments)
        rec.refs.in_place(node)
        rec.replays.append((node, operation, arguments))
        node.replays.append(operation)
        return
    rec.rewrite(node)


def _begin_operator(run: MonitorRun, call: NativeCall) -> Token:
    """An operator is about to run; one that is no other's part becomes a node of the graph."""
    rec, operation = run.recording, call.operation
    rec.inside += 1
    if call.on_graph:
        rec.running_as_is = None
        if operation in _KEEPS_ALL_AS_IS:
            rec.runs_as_is = f"{describe(operation)} {_KEEPS_ALL_AS_IS[operation]}"
        elif call.kwargs.get("requires_grad") is True:
            rec.runs_as_is = f"{describe(operation)} makes a tensor that gradients are collected in"
        elif operation is torch.autograd.grad:
            rec.stays_whole = f"{describe(operation)} takes gradients inside"
        if operation in _CUSTOM_FUNCTION:
            add_object_inputs(rec, call.args)
            if function_mode_count():
                rec.running_as_is = f"{describe(operation)} goes backward under a default device"
        rec.given = {id(tensor): tensor for tensor in _given_to(call)}
        rec.dynamic_inside = False
    if operation in _FOLLOWED:
        return finish_operator, call
    run.suspended += 1
    return finish_operator_suspended, call


def _given_to(call: NativeCall) -> Iterator[torch.Tensor]:
    """The tensors that an operator is given, those that functions among its arguments refer to
    included."""
    yield from tensors_in((call.args, call.kwargs))
    for value in (*call.args, *call.kwargs.values()):
        if is_instance(value, Closure):
            yield from tensors_in(value.operands)


def _begin(run: MonitorRun, call: NativeCall) -> Token:
    """What is no operator is about to run; of Python code the annotation has said all there is."""
    rec, annotation, operation, args, kwargs = (
        run.recording, call.annotation, call.operation, call.args, call.kwargs,
    )  # fmt: skip
    if (annotation.replay or is_instance(operation, _RUNS_PYTHON)) and not (
        _is_given_code(operation, annotation, args, kwargs)
    ):
        if is_instance(operation, functools._lru_cache_wrapper):
            if rec.is_born(operation):
                raise Split(
                    SplitReason.CACHED_FUNCTION,
                    f"calls {describe(operation)}, whose cache it has created",
                    describe(operation),
                )
            guard_cache_keys(rec, (*args, *kwargs.values()))
        run.suspended += 1
        return finish_suspended, call
    finish = finish_pure if annotation.output.relation is None else finish_read
    return finish, call


NUMPY = type(np.sum)


_RUNS_PYTHON = (types.FunctionType, functools._lru_cache_wrapper, NUMPY)
"""Kinds of operations that may be Python code: what an annotation says of one is all there is."""


def _is_given_code(
    operation: Any, annotation: Annotation, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether Python code of the program's runs in an operation, which is to be followed."""
    if is_instance(operation, NUMPY):
        return any(map(_calls_back, (*args, *kwargs.values())))
    given = dict(inputs_of(args, kwargs))
    return any(is_followed(given.get(position)) for position in annotation.calls)


def _calls_back(value: Any) -> bool:
    """Whether NumPy may call an argument, or a method of it such as ``__array__``."""
    called = types.FunctionType | types.MethodType | functools.partial
    return is_instance(value, called) or is_python_instance(value)


_SUSPENDED = (
    finish_compiling_query,
    finish_computed_suspended,
    finish_list_call_suspended,
    finish_suspended,
    finish_operator_suspended,
    finish_length,
    autograd_nodes.finish_registration,
    *checkpointed_functions.FINISHERS,
    *random_draws.FINISHERS,
)


def finish_raising(run: MonitorRun, finish: Callable[..., None], payload: Any) -> SplitCause | None:
    """The call raised: leave the state that entering it has set.

    Returns:
        Why the run must not be recorded if the program catches the exception: an operator that
        fails because of what its tensors hold does not fail at every call, nor does arithmetic
        that fails because of its numbers.

    Raises:
        Split: the numbers that arithmetic has failed for are only known when the region runs.
    """
    if finish in _SUSPENDED:
        run.suspended -= 1
    if finish in (finish_computed, finish_computed_suspended, finish_fold):
        run.lifted.specialize(payload[1])
    elif finish in (finish_list_call, finish_list_call_suspended):
        run.lifted.specialize(payload[1])
        for value in payload[1]:
            run.recording.visit(value, ValueRead.ALL)
    elif finish is finish_item:
        operation, (tensor,) = payload
        run.lifted.tensors.specialize_sizes(tensor)
        if tensor.numel() == 1:
            detail = f"catches an exception that {describe(operation)} raises for a tensor's value"
            return SplitCause(SplitReason.EXCEPTION_STATE, detail)
    elif is_instance(payload, random_draws.RepeatedCall):
        name = describe(payload.operation)
        detail = f"catches an exception that {name} raises for lifted numbers"
        return SplitCause(SplitReason.EXCEPTION_STATE, detail)
    if finish in (finish_operator, finish_operator_suspended):
        run.recording.inside -= 1
        by_values = payload.on_graph and not run.recording.inside and _by_values(run, payload)
        run.account()
        if by_values:
            name = describe(payload.operation)
            detail = f"catches an exception that {name} raises for a tensor's values"
            return SplitCause(SplitReason.EXCEPTION_STATE, detail)
    return None


def _by_values(run: MonitorRun, call: NativeCall) -> bool:
    """Whether a call of an operator, which has raised, may not raise where the guard holds."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    if run.lifted.any_lifted(tuple(leaves)):
        return True
    for value in leaves:
        if is_instance(value, torch.Tensor):
            run.lifted.tensors.specialize_sizes(value)
    return may_succeed(call.operation, call.args, call.kwargs)

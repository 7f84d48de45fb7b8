"""Results of native calls: the tokens of calls, and the functions that record their results.

A call other than an operator creates an object, returns an existing one, or reads process-wide
state. An operator becomes a node of the graph when the operators inside it have ended.
"""

from __future__ import annotations

import _abc
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import Annotation, RelationKind
from magpy_like.annotation.data_dependent_sizes import declared_shape
from magpy_like.annotation.schema import InputProperty, OutputProperty
from magpy_like.monitor.calls.argument_kinds import describe, holds_tensor, tensors_in
from magpy_like.monitor.calls.backward_code import references_of_operator
from magpy_like.monitor.calls.operator_body import record_references
from magpy_like.monitor.calls.read_calls import inputs_of, location_of_number
from magpy_like.monitor.objects import class_creation, object_addresses
from magpy_like.monitor.operator_graph.running_operator import RunningOperator
from magpy_like.monitor.region_entry import COMPILING_QUERIES, is_code_of_torch
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.monitor.symbolic.lists.unbound_tensors import unbind_into_list
from magpy_like.monitor.symbolic.numbers.cached_look_ups import note_call
from magpy_like.monitor.torch_state.torch_modes import SETTERS
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain, overrides_torch_function
from magpy_like.split_points import UnguardableRead
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.autograd import custom_function_calls
from magpy_like.torch_compat.operators import OpOverload, OpOverloadPacket, operator_tags

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording

    Token = tuple[Callable[..., Any], Any]


_PURE = Annotation("", False, True, {}, InputProperty(), OutputProperty(), source="")


@dataclass(slots=True)
class NativeCall:
    """A native call that has begun.

    Attributes:
        on_graph: whether it becomes a node of the operator graph.
    """

    annotation: Annotation
    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    on_graph: bool


def finish_pure(context: Context, done: NativeCall, result: Any) -> None:
    """Record the result of a call that is not an operator of the graph."""
    if done.annotation.state_read:
        context.recording.state.queries.append((done.operation, done.args, done.kwargs, result))
        if result is True and done.operation in COMPILING_QUERIES:
            context.compiling_read = True
            context.compiling_read_by_user |= not is_code_of_torch(context.frame)
        context.account()  # torch creates a tensor to find the default device
    if is_instance(done.operation, functools._lru_cache_wrapper):
        note_call(done.operation, done.args, done.kwargs, result)
        context.recording.state.cached_calls.append(
            (done.operation, done.args, done.kwargs, result)
        )
    relation = done.annotation.output.relation
    if relation is not None and relation.access == "read":
        if relation.kind is RelationKind.TYPE and is_instance(result, type) and len(done.args) == 1:
            if not context.recording.variables.is_new_object(result):
                context.recording.variables.constant(result)
    if relation is not None and relation.kind is RelationKind.CONSTANT:
        context.account()
        if not is_plain(result):
            context.recording.reads.record_cached(result)
    if done.operation in _REGISTRY_QUERIES and not result:
        abstract, queried = done.args
        for cls in (
            _classes_reported_by(queried)
            if done.operation is _abc._abc_instancecheck
            else [queried]
        ):
            context.recording.state.denied[abstract, cls] = None
    if any(is_instance(value, torch.Tensor) for value in (*done.args, *done.kwargs.values())):
        context.account()
        context.recording.constants.share_with_numpy(done.args, result)
    if type(result) is str and not all(map(is_plain, (*done.args, *done.kwargs.values()))):
        object_addresses.finish_text(context, None, result)
    context.recording.variables.add_new(result)
    if any(done.operation is creates for creates in class_creation.CREATES_CLASSES):
        class_creation.read_creation(context.recording, result)


_REGISTRY_QUERIES = (_abc._abc_instancecheck, _abc._abc_subclasscheck)
"""Queries whose negative results change when a class is registered with an abstract one."""


def _classes_reported_by(value: Any) -> list[type]:
    """The type of a value, and its ``__class__`` if that differs."""
    reported = value.__class__
    return [type(value)] if reported is type(value) else [type(value), reported]


def finish_read(context: Context, done: NativeCall, result: Any) -> Any:
    """Record a result read from an existing object, such as ``getattr(counter, "n")``.

    Returns the lifted number if the result is one.
    """
    finish_pure(context, done, result)
    assert done.annotation.output.relation is not None
    if not is_number(result):
        return None
    location = location_of_number(
        context.recording, done.annotation.output.relation, done.args, done.kwargs
    )
    return None if location is None else varying_reads.lift_element(context, *location, result)


def finish_followed(context: Context, _: None, result: Any) -> None:
    """Record the result of special methods that the monitor has followed."""
    context.recording.variables.add_new(result)


def recorded_call(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token:
    """The token of a call whose reads and effects are recorded already."""
    return finish_pure, NativeCall(_PURE, operation, args, kwargs, on_graph=False)


def recorded_tensor_call(args: tuple[Any, ...]) -> Token:
    """The token of an instruction that runs a tensor operator recorded already."""
    return recorded_call(None, args, {})


def finish_operator(context: Context, done: NativeCall, result: Any) -> None:
    """Record the result of an operator, which may be inside another one."""
    running = context.recording.running
    running.leave()
    _note_inner_change_of_dimensions(running, done)
    _note_casts(context, done, result)
    _record_operator(context, done, result)
    if not running.depth:
        running.inputs = {}
    context.account()  # the recording may itself copy a constant tensor


def _note_inner_change_of_dimensions(running: RunningOperator, done: NativeCall) -> None:
    """Keep an operator as it is whose own code changes the dimensions of an argument in place:
    AOTAutograd loses later changes of that argument."""
    if not running.depth or not done.args or id(done.args[0]) not in running.inputs:
        return
    if torch.Tag.inplace_view in operator_tags(done.operation):
        running.as_is = f"{describe(done.operation)} changes an argument inside an operator"


def _note_casts(context: Context, done: NativeCall, result: Any) -> None:
    arguments = [*done.args, *done.kwargs.values()]
    context.casts.note_operator(tensors_in(arguments), tensors_in(result))
    if not context.casts:
        return
    for position, value in inputs_of(done.args, done.kwargs):
        if done.annotation.writes_to(position, done.args):
            for tensor in tensors_in(value):
                context.casts.note_write(tensor)
    if done.operation is torch.clear_autocast_cache:
        context.casts.forget()


def _record_operator(context: Context, done: NativeCall, result: Any) -> None:
    if not done.on_graph or context.recording.running.depth:
        return
    annotation = done.annotation
    assert annotation is not None
    for tensor in tensors_in(result):
        if overrides_torch_function(tensor):
            raise UnguardableRead(
                SplitReason.TENSOR_SUBCLASS,
                f"creates a {type(tensor).__qualname__}, which has a __torch_function__",
            )
    if done.operation in custom_function_calls:
        _check_results_of_custom_function(context.recording, done.args, result)
    for position, value in inputs_of(done.args, done.kwargs):
        if annotation.writes_to(position, done.args):
            to_elements = torch.Tag.inplace_view not in operator_tags(done.operation)
            for tensor in tensors_in(value):
                context.recording.note_write(tensor, to_elements=to_elements)
    on_tensors = holds_tensor(done.args) or holds_tensor(tuple(done.kwargs.values()))
    if annotation.global_state and done.operation not in SETTERS:
        context.recording.operators.sets_modes = True
    if type(result) in (tuple, list) and unbind_into_list(
        context, done.operation, done.args, done.kwargs, result
    ):
        return
    if annotation.global_state or holds_tensor(result):
        shape = declared_shape(annotation, done.operation)
        context.recording.graph.add_operator(done.operation, done.args, done.kwargs, result, shape)
        if is_instance(done.operation, OpOverload | OpOverloadPacket):
            for node in [t.grad_fn for t in tensors_in(result) if t.requires_grad]:
                record_references(context.recording, references_of_operator(node))
    elif on_tensors and result is None:
        context.recording.graph.add_operator(done.operation, done.args, done.kwargs, result)
    elif on_tensors and (done.operation in _REPEAT_OPERATORS or not _is_metadata(result)):
        raise UnguardableRead(
            SplitReason.TENSOR_VALUE_READ,
            f"calls {describe(done.operation)}, which reads a tensor's value into Python",
        )
    elif not on_tensors:
        context.lifted.specialize((done.args, tuple(done.kwargs.values())))
        finish_pure(context, done, result)


def _check_results_of_custom_function(rec: Recording, args: tuple[Any, ...], result: Any) -> None:
    """Check that a custom function returns no external tensor but its arguments.

    Raises:
        UnguardableRead: it does; the tensor has another history after each call.
    """
    arguments = list(tensors_in(args))
    for tensor in tensors_in(result):
        is_argument = any(tensor is each for each in arguments)
        if not is_argument and rec.variables.node(tensor) is not None:
            raise UnguardableRead(
                SplitReason.FUNCTION_OPERAND,
                "returns an external tensor from a custom function that does not receive it",
            )


_REPEAT_OPERATORS = (operator.mul, operator.imul)
"""Python's operators that repeat a string a number of times, which a tensor may hold."""


def _is_metadata(result: Any) -> bool:
    return is_instance(result, torch.dtype | torch.device | torch.Size | torch.layout | str)

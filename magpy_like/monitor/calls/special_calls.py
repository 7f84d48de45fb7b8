"""The table of rules for native calls whose annotations do not describe them completely.

``begin_native_call`` applies the rules of ``SPECIAL_CALL_RULES`` in order. A rule that handles the
call returns its token, ``(finish, payload)``, or None if the result needs no handler. A rule that
does not handle the call returns ``NotImplemented``; it may have recorded reads or replaced
arguments. Any rule may raise ``Split``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from magpy_like.annotation import Annotation, RelationKind, ValueRead
from magpy_like.annotation.operator_facts import operator_facts
from magpy_like.monitor import random_draws, speculation
from magpy_like.monitor.calls.argument_kinds import (
    describe,
    holds_tensor,
    uses_special_methods,
)
from magpy_like.monitor.calls.call_inputs import substitute_inputs, visit_input
from magpy_like.monitor.calls.lifted_calls import (
    handle_cached_call,
    handle_computation,
    handle_fold,
    handle_varying_list_call,
)
from magpy_like.monitor.calls.operator_body import check_undeclared_tensors
from magpy_like.monitor.calls.results.native_results import (
    NativeCall,
    finish_followed,
    finish_operator,
    finish_pure,
    recorded_call,
)
from magpy_like.monitor.calls.special_methods import read_special_methods
from magpy_like.monitor.calls.storage_calls import check_resize, check_window
from magpy_like.monitor.objects import exc_info, locks, object_addresses
from magpy_like.monitor.operator_graph import profiler_labels
from magpy_like.monitor.operator_graph.constant_tensors import VALUE_READERS
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.region_entry import COMPILING_QUERIES, needs_eager_answer
from magpy_like.monitor.symbolic.expressions import is_number
from magpy_like.monitor.symbolic.lists import unbound_tensors
from magpy_like.monitor.symbolic.lists.graph_lists import JOINS, CarriedList, GraphList
from magpy_like.monitor.symbolic.tensors_as_numbers import (
    dimension_arguments,
    read_number_arguments,
)
from magpy_like.monitor.torch_state import autograd_nodes, default_device
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import EffectInsideOperator, Split, UnguardableRead
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.dispatch import function_mode_count
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor
from magpy_like.torch_interop.current_gpu import may_use_current_gpu

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


def handle_redundant_requires_grad(context: Context, call: NativeCall) -> Any:
    """``requires_grad_()`` changes nothing on an intermediate tensor that requires gradients."""
    if call.operation is not torch.Tensor.requires_grad_:
        return NotImplemented
    (tensor, *wanted), rec = (*call.args, *call.kwargs.values()), context.recording
    if any(value is not True for value in wanted):
        return NotImplemented
    if (
        rec.variables.node(tensor) is None
        and rec.operators.nodes.node_of(tensor)
        and tensor.requires_grad
    ):
        return recorded_call(call.operation, call.args, call.kwargs)
    return NotImplemented


def handle_exc_info(context: Context, call: NativeCall) -> Any:
    """``sys.exc_info()`` and ``sys.exception()``."""
    if call.operation in exc_info.QUERIES and not context.recording.running.depth:
        return exc_info.begin_query(context)
    return NotImplemented


def handle_autograd_call(context: Context, call: NativeCall) -> Any:
    """Registration of hooks; splits at calls that change the autograd graph."""
    if context.recording.running.depth:
        return NotImplemented
    if call.operation in autograd_nodes.GRADIENT_HOOKS:
        return autograd_nodes.register_hook(context, call.operation, call.args, call.kwargs)
    autograd_nodes.split_at_double_backward(
        context.recording, call.operation, call.args, call.kwargs
    )
    if call.operation is torch.autograd.grad and context.recording.effects.hooks:
        raise autograd_nodes.split_at_autograd_graph(context.recording)
    return NotImplemented


def handle_compiling_query(context: Context, call: NativeCall) -> Any:
    """``torch.compiler.is_compiling()`` in code of torch's that runs as in eager mode."""
    if call.operation in COMPILING_QUERIES and needs_eager_answer(context):
        return context.suspension.until(_finish_compiling_query, None)
    return NotImplemented


def _finish_compiling_query(context: Context, _: None, result: Any) -> bool:
    """Return the answer of eager mode."""
    return False


def handle_address_query(context: Context, call: NativeCall) -> Any:
    """``id``, ``hash`` or ``repr`` of an object, if the result depends on its address."""
    one = len(call.args) == 1 and not call.kwargs
    if (
        call.operation in object_addresses.ADDRESS_QUERIES
        and not context.recording.running.depth
        and one
    ):
        if (
            token := object_addresses.begin_address_query(context, call.operation, call.args[0])
        ) is not None:
            return token
    return NotImplemented


def handle_lock_exit(context: Context, call: NativeCall) -> Any:
    """The release of a lock whose acquisition was not recorded either."""
    if locks.release_uncontended(context.recording, call.operation, call.args):
        return recorded_call(call.operation, call.args, call.kwargs)
    return NotImplemented


def handle_profiler_label(context: Context, call: NativeCall) -> Any:
    """``torch.profiler.record_function``: none of its methods is followed."""
    if call.operation is record_function:
        return context.suspension.until(finish_pure, call)
    record = profiler_labels.METHODS.get(call.operation) if call.args else None
    if record is None or not profiler_labels.is_label(call.args[0]):
        return NotImplemented
    return record(context, call.args[0])


def handle_function_mode(context: Context, call: NativeCall) -> Any:
    """Calls under a default device, which is a mode for torch functions."""
    if function_mode_count():
        if call.operation in default_device.OVERRIDE_QUERIES:
            return _finish_overrides_query, (call.operation, call.args)
        _check_default_device(context.recording, call.operation)
    return NotImplemented


def _finish_overrides_query(context: Context, query: tuple[Any, Any], result: Any) -> Any:
    """Return the result without the default device, which does not affect functions in Python."""
    operation, args = query
    with default_device.held([]):
        return operation(*args)


def _check_default_device(rec: Recording, operation: Any) -> None:
    """Check a constructor inside an operator: the graph names the default device only outside.

    Raises:
        EffectInsideOperator: the default device has changed since the region was entered.
    """
    if rec.running.depth and operation in default_device.CONSTRUCTORS:
        reason = f"{describe(operation)} needs the default device inside an operator"
        if default_device.default_device() != rec.state.default_device:
            raise EffectInsideOperator(SplitReason.EFFECT_IN_OPERATOR, reason)
        rec.graph.runs_as_is = reason


def guard_current_gpu(context: Context, call: NativeCall) -> Any:
    """Guard the current GPU if the call may use it as its default."""
    if not call.annotation.as_op_node:
        return NotImplemented
    args, kwargs = call.args, default_device.with_device(call.operation, call.kwargs)
    if may_use_current_gpu(call.operation, args, kwargs):
        context.recording.state.rely_on_current_gpu()
    return NotImplemented


def check_operator_body(context: Context, call: NativeCall) -> Any:
    """Check the tensors of calls inside an operator."""
    if context.recording.running.depth:
        check_undeclared_tensors(context.recording, call.args, call.kwargs)
    return NotImplemented


def handle_special_methods(context: Context, call: NativeCall) -> Any:
    """An operator that special methods in Python implement: the monitor follows them."""
    if call.annotation.as_op_node and uses_special_methods(call.operation, call.args):
        for value in call.args:
            read_special_methods(context.recording, value)
            visit_input(context.recording, value)
        return finish_followed, None
    return NotImplemented


def handle_graph_list_call(context: Context, call: NativeCall) -> Any:
    """An operation on a list of the graph, for any length of the list."""
    rec, args = context.recording, call.args
    if args and id(args[0]) in rec.operators.lists and not rec.running.depth:
        token = _begin_graph_list_call(context, call)
        if token is not None:
            return token
    return NotImplemented


def _begin_graph_list_call(context: Context, call: NativeCall) -> Token | None:
    rec, operation = context.recording, call.operation
    operators, rest = rec.operators, (*call.args[1:], *call.kwargs.values())
    graph_list = operators.lists[id(call.args[0])]
    if is_instance(graph_list, CarriedList) and operation in (list.append, list.extend):
        if operation is list.append or (len(rest) == 1 and graph_list.takes(rec, rest[0])):
            return finish_pure, call
    if is_instance(graph_list, CarriedList) and operation is len and not rest:
        return _finish_carried_list_length, graph_list
    if is_instance(graph_list, GraphList) and operation is len and not rest:
        return _finish_graph_list_length, graph_list
    if is_instance(graph_list, GraphList) and operation in (list, tuple) and not rest:
        if graph_list.is_unchanged() and not graph_list.has_data_dependent_length:
            return unbound_tensors.finish_copy, (graph_list, operation)
    plain = all(type(value) is int for value in rest) and not context.lifted.any_lifted(rest)
    joins = is_instance(graph_list, GraphList) and operation in JOINS and graph_list.is_unchanged()
    if not (joins and plain):
        operators.inspect_list(graph_list.value)
        return None
    rec.running.begin(graph_list.value)
    call.on_graph = True
    return context.suspension.until(finish_operator, call)


def _finish_carried_list_length(context: Context, graph_list: CarriedList, result: Any) -> Any:
    return graph_list.length(context)


def _finish_graph_list_length(context: Context, graph_list: GraphList, result: Any) -> Any:
    expression = context.lifted.expression(graph_list.count)
    if expression is None:
        return None
    return context.lifted.lift(result, expression, context.lifted.twin(graph_list.count))


def handle_constant_read(context: Context, call: NativeCall) -> Any:
    """A read of the value of a constant tensor."""
    arguments = (*call.args, *call.kwargs.values())
    reads = call.operation in VALUE_READERS and context.recording.constants.hold(*arguments)
    if reads and holds_tensor(arguments) and not context.recording.running.depth:
        return _finish_constant, call
    return NotImplemented


def _finish_constant(context: Context, done: NativeCall, result: Any) -> None:
    context.account()
    context.recording.constants.share_with_numpy(done.args, result)
    context.recording.variables.add_new(result)


def handle_truth_query(context: Context, call: NativeCall) -> Any:
    """``bool`` of a tensor, as a speculated value."""
    if speculation.is_truth_query(call.operation, call.args):
        speculation.speculate_on_branch(context, call.args[0])
        return recorded_call(call.operation, call.args, call.kwargs)
    return NotImplemented


def handle_value_query(context: Context, call: NativeCall) -> Any:
    """A comparison of whole tensors, or a list of a tensor, as a speculated value."""
    operation, args = call.operation, call.args
    if speculation.is_value_query(operation, args) and holds_tensor(args):
        try:
            speculation.speculate_on_values(context, operation, args, call.kwargs)
            return recorded_call(call.operation, call.args, call.kwargs)
        except Split:
            if not speculation.returns_few_numbers(operation, args):
                raise
    return NotImplemented


def handle_numbers_read(context: Context, call: NativeCall) -> Any:
    """``tolist`` of a tensor of few numbers, which become lifted numbers."""
    if (
        speculation.returns_few_numbers(call.operation, call.args)
        and not context.recording.running.depth
    ):
        context.lifted.tensors.specialize_sizes(call.args[0])
        return _finish_items, (call.operation, call.args[0])
    return NotImplemented


def _finish_items(context: Context, read: tuple[Any, torch.Tensor], result: Any) -> Any:
    if type(result) is not list:
        return finish_item(context, (read[0], (read[1],)), result)
    numbers = context.lifted.tensors.lift_items(*read, result)
    context.account()
    return numbers


def handle_number_read(context: Context, call: NativeCall) -> Any:
    """``item``, ``int`` or ``float`` of a tensor: the number becomes a lifted number."""
    one = len(call.args) == 1 and not call.kwargs
    if call.operation in _NUMBER_READERS and not context.recording.running.depth and one:
        if is_instance(call.args[0], torch.Tensor):
            return finish_item, (call.operation, call.args)
    return NotImplemented


_NUMBER_READERS = {
    int, float, torch.Tensor.item, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__,
}  # fmt: skip
"""Functions that read the only element of a tensor as a number."""


def finish_item(context: Context, read: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    """Lift the number that was read from a tensor."""
    if not is_number(result):
        raise UnguardableRead(
            SplitReason.TENSOR_VALUE_READ,
            f"reads a tensor's value into Python as a {type(result).__name__}",
        )
    number = context.lifted.tensors.lift_item(*read, result)
    context.account()
    return number


def substitute_lifted_inputs(context: Context, call: NativeCall) -> Any:
    """Substitute lifted numbers in the containers that the call reads."""
    if not context.recording.running.depth:
        substitute_inputs(context, call.annotation, call.args, call.kwargs)
    return NotImplemented


def handle_random_draw(context: Context, call: NativeCall) -> Any:
    """A draw of random numbers, which the mock repeats."""
    if call.annotation.random and not context.recording.running.depth:
        return random_draws.repeat_draw(context, call.operation, call.args, call.kwargs)
    return NotImplemented


def handle_random_array_call(context: Context, call: NativeCall) -> Any:
    """A computation on random NumPy arrays, which the mock repeats."""
    derived = random_draws.repeat_array_call(context, call.operation, call.args, call.kwargs)
    return NotImplemented if derived is None else derived


def substitute_numbers_for_tensors(context: Context, call: NativeCall) -> Any:
    """Replace tensors by lifted numbers where native code would read a number from them."""
    if context.recording.running.depth:
        return NotImplemented
    numbers: list[Any] = []
    read = functools.partial(_read_number, context, numbers)
    call.args, call.kwargs = read_number_arguments(call.operation, call.args, call.kwargs, read)
    if not call.on_graph:
        context.lifted.specialize(numbers)
    elif context.lifted:
        context.lifted.specialize(dimension_arguments(call.operation, call.args, call.kwargs))
    return NotImplemented


def _read_number(context: Context, numbers: list[Any], tensor: torch.Tensor) -> Any:
    """The lifted number of a tensor that native code is about to read; appended to ``numbers``.

    Raises:
        Split: the tensor is fake, in a branch run, and has no value.
    """
    if is_instance(tensor, FakeTensor):
        raise Split(SplitReason.TENSOR_VALUE_READ, "converts a tensor to a number")
    read: Any = int if tensor.dtype is torch.bool else torch.Tensor.item
    number = context.lifted.tensors.lift_item(read, (tensor,), read(tensor))
    context.account()
    numbers.append(number)
    return number


def handle_size_query(context: Context, call: NativeCall) -> Any:
    """A read of sizes that may vary: the result becomes a lifted number."""
    operation, args, kwargs = call.operation, call.args, call.kwargs
    if _reads_varying_sizes(context, call.annotation, operation, args):
        context.lifted.specialize((args[1:], tuple(kwargs.values())))
        if operation is len:
            # Tensor.__len__ is written in Python.
            return context.suspension.until(_finish_metadata, (operation, args, kwargs))
        return _finish_metadata, (operation, args, kwargs)
    return NotImplemented


def _reads_varying_sizes(
    context: Context, annotation: Annotation, operation: Any, args: tuple[Any, ...]
) -> bool:
    """True if a call returns a size of a tensor, and the size may vary."""
    rec = context.recording
    if rec.running.depth or not args or not is_instance(args[0], torch.Tensor):
        return False
    if annotation.as_op_node or not annotation.pure_closure:
        return False
    if rec.sizes.twin is None and not rec.operators.has_data_dependent_shape(args[0]):
        return False
    if annotation.input(0).value_read not in (ValueRead.TYPE, ValueRead.LENGTH):
        return False
    relation = annotation.output.relation
    if relation is not None and relation.kind is not RelationKind.LENGTH:
        return False
    if operation is len and type(args[0]).__len__ is not torch.Tensor.__len__:
        return False
    facts = operator_facts(getattr(operation, "__name__", ""))
    return facts.reads_sizes and facts.guarded


def _finish_metadata(
    context: Context, call: tuple[Any, tuple[Any, ...], dict[str, Any]], result: Any
) -> Any:
    operation, args, kwargs = call
    context.account()
    if kwargs:  # x.size(dim=0)
        operation = functools.partial(operation, **kwargs)
    return context.lifted.tensors.lift_metadata(operation, args, result)


def handle_getattr(context: Context, call: NativeCall) -> Any:
    """``getattr`` of a tensor's own attribute."""
    args = call.args
    if (
        call.operation is getattr
        and is_instance(args[0], torch.Tensor)
        and is_instance(args[1], str)
    ):
        if is_instance(lookup_in_type(type(args[0]), args[1]), types.GetSetDescriptorType):
            return context.read_tensor_attribute(args[0], args[1])
    return NotImplemented


SPECIAL_CALL_RULES: tuple[Callable[[Context, NativeCall], Any], ...] = (
    handle_exc_info,
    handle_autograd_call,
    handle_compiling_query,
    handle_address_query,
    handle_lock_exit,
    handle_profiler_label,
    handle_redundant_requires_grad,
    handle_function_mode,
    guard_current_gpu,
    check_operator_body,
    check_resize,
    handle_special_methods,
    handle_graph_list_call,
    handle_constant_read,
    handle_truth_query,
    handle_value_query,
    handle_numbers_read,
    handle_number_read,
    handle_varying_list_call,
    substitute_lifted_inputs,
    handle_random_draw,
    handle_random_array_call,
    substitute_numbers_for_tensors,
    check_window,
    handle_size_query,
    handle_getattr,
    handle_fold,
    handle_cached_call,
    handle_computation,
)
"""The order matters: the rules after `substitute_lifted_inputs` may receive lifted numbers as
arguments, and the rules after `substitute_numbers_for_tensors` receive numbers in place of tensors.
"""

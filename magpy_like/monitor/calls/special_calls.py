"""Calls of native code that are not judged by their annotation alone, as a table.

Each rule is asked in turn, and the first that knows better answers: with what is done when the
result is there, or None for nothing. One that has no answer returns ``NotImplemented``; it may have
looked at the call, split the program, or put other arguments in place of those that were given.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import Annotation, RelationKind, ValueRead
from magpy_like.monitor import speculation
from magpy_like.monitor.calls.argument_kinds import (
    describe,
    holds_tensor,
    uses_special_methods,
)
from magpy_like.monitor.calls.call_inputs import substitute_inputs, visit_input
from magpy_like.monitor.calls.native_inspections import READS_NO_SIZES
from magpy_like.monitor.calls.native_results import (
    NativeCall,
    finish_followed,
    finish_operator_suspended,
    finish_pure,
    recorded_call,
)
from magpy_like.monitor.calls.operator_body import check_undeclared_tensors
from magpy_like.monitor.objects import exc_info, locks, object_addresses
from magpy_like.monitor.objects.containers import CONTAINERS
from magpy_like.monitor.operator_graph.constant_tensors import VALUE_READERS
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.region_entry import ASK_WHETHER_COMPILING, hears_what_eager_hears
from magpy_like.monitor.symbolic import unbound_tensors, varying_lists
from magpy_like.monitor.symbolic.expressions import is_liftable, is_number
from magpy_like.monitor.symbolic.gathered_lists import JOINS, CarriedList, GraphList
from magpy_like.monitor.symbolic.repeatable_calls import (
    GUARDED_RESULTS,
    NUMPY_FUNCTIONS,
    as_lifted_call,
    is_number_sequence,
    is_python_function,
    with_result_type,
)
from magpy_like.monitor.symbolic.tensors_as_numbers import (
    dimension_arguments,
    read_number_arguments,
)
from magpy_like.monitor.torch_state import (
    autograd_nodes,
    default_device,
    random_draws,
    tensor_metadata,
)
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import storage_of
from magpy_like.split_points import EffectInsideOperator, Split, UnguardableRead
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.dispatch import function_mode_count
from magpy_like.torch_compat.fake_tensors import FakeTensor
from magpy_like.torch_interop.current_gpu import is_for_current_gpu

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]


def _takes_part_already(run: MonitorRun, call: NativeCall) -> Any:
    """A tensor that the graph has made, and that takes part in gradients, is to do so."""
    if call.operation is not torch.Tensor.requires_grad_:
        return NotImplemented
    (tensor, *wanted), rec = (*call.args, *call.kwargs.values()), run.recording
    if any(value is not True for value in wanted):
        return NotImplemented
    if rec.node(tensor) is None and rec.operators.node_of(tensor) and tensor.requires_grad:
        return recorded_call(call.operation, call.args, call.kwargs)
    return NotImplemented


_RESIZES = {torch.Tensor.resize_, torch.Tensor.resize_as_, torch.resize_as_}


def _asks_for_exception(run: MonitorRun, call: NativeCall) -> Any:
    if call.operation in exc_info.ASKS and not run.recording.inside:
        return exc_info.ask(run)
    return NotImplemented


def _of_autograd(run: MonitorRun, call: NativeCall) -> Any:
    if run.recording.inside:
        return NotImplemented
    if call.operation in autograd_nodes.GRADIENT_HOOKS:
        return autograd_nodes.register_hook(run, call.operation, call.args, call.kwargs)
    autograd_nodes.split_at_double_backward(run.recording, call.operation, call.args, call.kwargs)
    if call.operation is torch.autograd.grad and run.recording.hooks:
        raise autograd_nodes.split_at_autograd_graph(run.recording)
    return NotImplemented


def _asks_whether_compiling(run: MonitorRun, call: NativeCall) -> Any:
    if call.operation in ASK_WHETHER_COMPILING and run.at and hears_what_eager_hears(run.at):
        run.suspended += 1
        return finish_compiling_query, None
    return NotImplemented


def finish_compiling_query(run: MonitorRun, _: None, result: Any) -> bool:
    run.suspended -= 1
    return False


def _tells_address(run: MonitorRun, call: NativeCall) -> Any:
    one = len(call.args) == 1 and not call.kwargs
    if call.operation in object_addresses.TELLS and not run.recording.inside and one:
        if (told := object_addresses.tell(run, call.operation, call.args[0])) is not None:
            return told
    return NotImplemented


def _leaves_quietly(run: MonitorRun, call: NativeCall) -> Any:
    if locks.leaves_quietly(run.recording, call.operation, call.args):
        return recorded_call(call.operation, call.args, call.kwargs)
    return NotImplemented


def _under_torch_functions(run: MonitorRun, call: NativeCall) -> Any:
    if function_mode_count():
        if call.operation in default_device.ASKS_FOR_OVERRIDES:
            return _finish_asking_for_overrides, (call.operation, call.args)
        _look_at_default_device(run.recording, call.operation)
    return NotImplemented


def _finish_asking_for_overrides(run: MonitorRun, asked: tuple[Any, Any], result: Any) -> Any:
    """A default device does nothing to a function that is written in Python."""
    operation, args = asked
    with default_device.held([]):
        return operation(*args)


def _look_at_default_device(rec: Recording, operation: Any) -> None:
    """The graph names the default device where tensors are made, but not inside an operator.

    Raises:
        Effect: it would have to know of another one than that at its beginning.
    """
    if rec.inside and operation in default_device.CONSTRUCTORS:
        reason = f"{describe(operation)} needs the default device inside an operator"
        if default_device.default_device() != rec.default_device:
            raise EffectInsideOperator(SplitReason.EFFECT_IN_OPERATOR, reason)
        rec.runs_as_is = reason


def _goes_to_current_gpu(run: MonitorRun, call: NativeCall) -> Any:
    """The guard insists on the current GPU where a call may leave its device to that."""
    if not call.annotation.as_op_node:
        return NotImplemented
    args, kwargs = call.args, default_device.with_device(call.operation, call.kwargs)
    if is_for_current_gpu(call.operation, args, kwargs):
        run.recording.rely_on_current_gpu()
    return NotImplemented


def _with_strangers(run: MonitorRun, call: NativeCall) -> Any:
    if run.recording.inside:
        check_undeclared_tensors(run.recording, call.args, call.kwargs)
    return NotImplemented


def _resizes(run: MonitorRun, call: NativeCall) -> Any:
    """
    Raises:
        Split: a tensor from outside has another storage from here on.
    """
    if call.operation in _RESIZES and _is_outside(run.recording, call.args[0]):
        raise Split(SplitReason.TENSOR_INTERNALS, "changes the storage of an external tensor")
    return NotImplemented


def _is_outside(rec: Recording, tensor: Any) -> bool:
    """Whether a tensor is from outside, or shares its memory with one that is."""
    inputs = (rec.refs.get_node_by_id(i) for _, i in rec.operators.inputs if is_instance(i, int))
    variables = (node.variable for node in inputs)
    return rec.node(tensor) is not None or any(
        is_instance(other, torch.Tensor) and storage_of(other) == storage_of(tensor)
        for other in variables
    )


def _answers_in_python(run: MonitorRun, call: NativeCall) -> Any:
    if call.annotation.as_op_node and uses_special_methods(call.operation, call.args):
        for value in call.args:
            visit_input(run.recording, value)
        return finish_followed, None
    return NotImplemented


def _of_lists(run: MonitorRun, call: NativeCall) -> Any:
    """An operation on a list as long as a loop has rounds, unless its length is looked at."""
    rec, args = run.recording, call.args
    if args and id(args[0]) in rec.operators.lists and not rec.inside:
        token = _of_list(run, call)
        if token is not None:
            return token
    return NotImplemented


def _of_list(run: MonitorRun, call: NativeCall) -> Token | None:
    rec, operation = run.recording, call.operation
    operators, rest = rec.operators, (*call.args[1:], *call.kwargs.values())
    given = operators.lists[id(call.args[0])]
    if is_instance(given, CarriedList) and operation in (list.append, list.extend):
        if operation is list.append or (len(rest) == 1 and given.takes(rec, rest[0])):
            return finish_pure, call
    if is_instance(given, CarriedList) and operation is len and not rest:
        return _finish_length, given
    if is_instance(given, GraphList) and operation is len and not rest:
        return _finish_count, given
    if is_instance(given, GraphList) and operation in (list, tuple) and not rest:
        if given.is_unchanged() and not given.has_data_dependent_length:
            return unbound_tensors.finish_copy, (given, operation)
    plain = all(type(value) is int for value in rest) and not run.lifted.any_lifted(rest)
    joins = is_instance(given, GraphList) and operation in JOINS and given.is_unchanged()
    if not (joins and plain):
        operators.inspect_list(given.value)
        return None
    rec.inside += 1
    rec.given = {id(tensor): tensor for tensor in given.value}
    rec.dynamic_inside = False
    run.suspended += 1
    call.on_graph = True
    return finish_operator_suspended, call


def _finish_length(run: MonitorRun, given: CarriedList, result: Any) -> Any:
    return given.length(run)


def _finish_count(run: MonitorRun, given: GraphList, result: Any) -> Any:
    expression = run.lifted.expression(given.count)
    if expression is None:
        return None
    return run.lifted.lift(result, expression, run.lifted.twin(given.count))


def _reads_constant(run: MonitorRun, call: NativeCall) -> Any:
    given = (*call.args, *call.kwargs.values())
    reads = call.operation in VALUE_READERS and run.recording.constants.hold(*given)
    if reads and holds_tensor(given) and not run.recording.inside:
        return _finish_constant, call
    return NotImplemented


def _finish_constant(run: MonitorRun, done: NativeCall, result: Any) -> None:
    run.account()
    run.recording.constants.share_with_numpy(done.args, result)
    run.recording.bear(result)


def _asks_for_truth(run: MonitorRun, call: NativeCall) -> Any:
    if speculation.asks_for_truth(call.operation, call.args):
        speculation.speculate_on_branch(run, call.args[0])
        return recorded_call(call.operation, call.args, call.kwargs)
    return NotImplemented


def _asks_for_values(run: MonitorRun, call: NativeCall) -> Any:
    operation, args = call.operation, call.args
    if speculation.asks_for_values(operation, args) and holds_tensor(args):
        try:
            speculation.speculate_on_values(run, operation, args, call.kwargs)
            return recorded_call(call.operation, call.args, call.kwargs)
        except Split:
            if not speculation.gives_numbers(operation, args):
                raise
    return NotImplemented


def _gives_numbers(run: MonitorRun, call: NativeCall) -> Any:
    if speculation.gives_numbers(call.operation, call.args) and not run.recording.inside:
        run.lifted.tensors.specialize_sizes(call.args[0])
        return _finish_items, (call.operation, call.args[0])
    return NotImplemented


def _finish_items(run: MonitorRun, read: tuple[Any, torch.Tensor], result: Any) -> Any:
    if type(result) is not list:
        return finish_item(run, (read[0], (read[1],)), result)
    numbers = run.lifted.tensors.lift_items(*read, result)
    run.account()
    return numbers


def _gives_number(run: MonitorRun, call: NativeCall) -> Any:
    one = len(call.args) == 1 and not call.kwargs
    if call.operation in _ITEMS and not run.recording.inside and one:
        if is_instance(call.args[0], torch.Tensor):
            return finish_item, (call.operation, call.args)
    return NotImplemented


_ITEMS = {
    int, float, torch.Tensor.item, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__,
}  # fmt: skip
"""Ways to read a tensor's only value as a number."""


def finish_item(run: MonitorRun, read: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    if not is_number(result):
        raise UnguardableRead(
            SplitReason.TENSOR_VALUE_READ,
            f"reads a tensor's value into Python as a {type(result).__name__}",
        )
    number = run.lifted.tensors.lift_item(*read, result)
    run.account()
    return number


def _of_varying_lists(run: MonitorRun, call: NativeCall) -> Any:
    """Native code makes something of a list that is another one at every call, or counts it."""
    given = (*call.args, *call.kwargs.values())
    if not varying_lists.has_varying_lists(run) or not any(
        type(v) in varying_lists.KINDS for v in given
    ):
        return NotImplemented
    if call.operation is len and len(given) == 1:
        token = varying_lists.read_length(run, given[0])
        return NotImplemented if token is None else token
    if call.operation in varying_lists.POPS:
        token = varying_lists.pop(run, call.operation, *given)
        return NotImplemented if token is None else token
    known = functools.partial(_is_known, run)
    if any(is_instance(value, CONTAINERS) and not known(value) for value in given):
        return NotImplemented  # what it holds is relied on
    function = as_lifted_call(call.annotation, call.operation, call.args, call.kwargs, known)
    if function is None or not any(type(v) in varying_lists.KINDS for v in function[1]):
        return NotImplemented
    for value in given:
        run.recording.visit(value, ValueRead.TYPE)
    if is_instance(call.operation, NUMPY_FUNCTIONS):
        run.suspended += 1
        return finish_list_call_suspended, function
    return finish_list_call, function


def _is_known(run: MonitorRun, value: Any) -> bool:
    if type(value) in varying_lists.KINDS:
        return varying_lists.list_contents(run.recording, value) is not None
    return run.lifted.is_lifted(value)


def finish_list_call(run: MonitorRun, payload: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    operation, operands = payload
    lifted, rec = run.lifted, run.recording
    parts = tuple(
        varying_lists.list_contents(rec, v) or lifted.expression(v) or v for v in operands
    )
    with _only_computed():
        if is_liftable(result):
            made = lifted.arithmetic.expression(
                with_result_type(operation, operands, result), operands, parts
            )
            return lifted.lift(result, made)
        if type(result) in GUARDED_RESULTS:
            lifted.guards.require_result(operation, operands, result, parts)
        else:
            lifted.specialize(operands)
            for value in operands:
                rec.visit(value, ValueRead.ALL)
    rec.bear(result)
    return None


def finish_list_call_suspended(
    run: MonitorRun, payload: tuple[Any, tuple[Any, ...]], result: Any
) -> Any:
    run.suspended -= 1
    return finish_list_call(run, payload, result)


def _lends(run: MonitorRun, call: NativeCall) -> Any:
    if not run.recording.inside:
        substitute_inputs(run, call.annotation, call.args, call.kwargs)
    return NotImplemented


def _draws(run: MonitorRun, call: NativeCall) -> Any:
    if call.annotation.random and not run.recording.inside:
        return random_draws.repeat_draw(run, call.operation, call.args, call.kwargs)
    return NotImplemented


def _derives(run: MonitorRun, call: NativeCall) -> Any:
    derived = random_draws.repeat_array_call(run, call.operation, call.args, call.kwargs)
    return NotImplemented if derived is None else derived


def _takes_numbers(run: MonitorRun, call: NativeCall) -> Any:
    """Numbers come in place of tensors that native code would take them out of."""
    if run.recording.inside:
        return NotImplemented
    numbers: list[Any] = []
    read = functools.partial(_read, run, numbers)
    call.args, call.kwargs = read_number_arguments(call.operation, call.args, call.kwargs, read)
    if not call.on_graph:
        run.lifted.specialize(numbers)
    elif run.lifted:
        run.lifted.specialize(dimension_arguments(call.operation, call.args, call.kwargs))
    return NotImplemented


def _read(run: MonitorRun, numbers: list[Any], tensor: torch.Tensor) -> Any:
    """The number that native code is about to take out of a tensor; it joins ``numbers``.

    Raises:
        Split: a tensor of a run beside the program has no value.
    """
    if is_instance(tensor, FakeTensor):
        raise Split(SplitReason.TENSOR_VALUE_READ, "converts a tensor to a number")
    read: Any = int if tensor.dtype is torch.bool else torch.Tensor.item
    number = run.lifted.tensors.lift_item(read, (tensor,), read(tensor))
    run.account()
    numbers.append(number)
    return number


def _tells_sizes(run: MonitorRun, call: NativeCall) -> Any:
    operation, args, kwargs = call.operation, call.args, call.kwargs
    if _looks_at_sizes(run, call.annotation, operation, args):
        run.lifted.specialize((args[1:], tuple(kwargs.values())))
        if operation is len:
            run.suspended += 1  # Tensor.__len__ is written in Python
            return finish_length, (operation, args, kwargs)
        return _finish_metadata, (operation, args, kwargs)
    return NotImplemented


def _looks_at_sizes(
    run: MonitorRun, annotation: Annotation, operation: Any, args: tuple[Any, ...]
) -> bool:
    """Whether a call tells of a tensor's sizes, and these may vary."""
    rec = run.recording
    if rec.inside or not args or not is_instance(args[0], torch.Tensor):
        return False
    if annotation.as_op_node or not annotation.pure_closure:
        return False
    if rec.twin is None and not rec.operators.has_data_dependent_shape(args[0]):
        return False
    if annotation.input(0).value_read not in (ValueRead.TYPE, ValueRead.LENGTH):
        return False
    relation = annotation.output.relation
    if relation is not None and relation.kind is not RelationKind.LENGTH:
        return False
    if operation is len and type(args[0]).__len__ is not torch.Tensor.__len__:
        return False
    return getattr(operation, "__name__", "") not in READS_NO_SIZES | tensor_metadata.UNCHECKED


def finish_length(run: MonitorRun, looked: Any, result: Any) -> Any:
    run.suspended -= 1
    return _finish_metadata(run, looked, result)


def _finish_metadata(
    run: MonitorRun, looked: tuple[Any, tuple[Any, ...], dict[str, Any]], result: Any
) -> Any:
    operation, args, kwargs = looked
    run.account()
    if kwargs:  # x.size(dim=0)
        operation = functools.partial(operation, **kwargs)
    return run.lifted.tensors.lift_metadata(operation, args, result)


def _reads_attribute(run: MonitorRun, call: NativeCall) -> Any:
    args = call.args
    if (
        call.operation is getattr
        and is_instance(args[0], torch.Tensor)
        and is_instance(args[1], str)
    ):
        if is_instance(lookup_in_type(type(args[0]), args[1]), types.GetSetDescriptorType):
            return run.read_tensor_attribute(args[0], args[1])
    return NotImplemented


@contextlib.contextmanager
def _only_computed() -> Iterator[None]:
    """What cannot be said of a result ends the segment before the instruction that gave it, which
    has done no more than to compute."""
    try:
        yield
    except Split as split:
        raise UnguardableRead(*split.cause) from None


def _folds(run: MonitorRun, call: NativeCall) -> Any:
    operation, args = call.operation, call.args
    if (
        not call.kwargs
        and run.lifted.identities.holds_lifted(args)
        and run.lifted.folds.can_compute(operation, args)
    ):
        visit_input(
            run.recording, args[0]
        )  # it may be from outside, and have other elements besides
        return finish_fold, (operation, args)
    return NotImplemented


def finish_fold(run: MonitorRun, folded: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    with _only_computed():
        return run.lifted.folds.compute(*folded, result)


def _computes(run: MonitorRun, call: NativeCall) -> Any:
    if not run.lifted or run.recording.inside:
        return NotImplemented
    given = (*call.args, *call.kwargs.values())
    function = as_lifted_call(
        call.annotation, call.operation, call.args, call.kwargs, run.lifted.is_lifted
    )
    if function is not None:
        for value in given:
            visit_input(run.recording, value)
        if is_instance(call.operation, NUMPY_FUNCTIONS):
            run.suspended += 1  # some of it is written in Python
            return finish_computed_suspended, function
        return finish_computed, function
    if call.on_graph and is_python_function(call.operation) and not holds_tensor(given):
        run.lifted.specialize(given)
    return NotImplemented


def finish_computed(run: MonitorRun, payload: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    """Something was made of numbers and text. Of a result that cannot be lifted it is enough that
    it is the same again, where that can be asked.

    Raises:
        Look: it depends on a number that is only known when the region runs.
    """
    operation, operands = payload
    with _only_computed():
        if is_liftable(result):
            return run.lifted.arithmetic.compute(
                with_result_type(operation, operands, result), operands, result
            )
        if is_number_sequence(operation, result):
            parts = run.lifted.arithmetic.compute_sequence(operation, operands, result)
            run.recording.bear(parts)
            return parts
        if operation in _QUESTIONS:
            run.lifted.guards.require_truth(_QUESTIONS[operation], operands)
        elif type(result) in GUARDED_RESULTS:
            run.lifted.guards.require_result(operation, operands, result)
        else:
            run.lifted.specialize(operands)
    run.recording.bear(result)
    return None


def finish_computed_suspended(
    run: MonitorRun, payload: tuple[Any, tuple[Any, ...]], result: Any
) -> Any:
    run.suspended -= 1
    return finish_computed(run, payload, result)


_QUESTIONS: dict[Any, Any] = {
    operator.lt: operator.lt, operator.le: operator.le, operator.gt: operator.gt,
    operator.ge: operator.ge, operator.eq: operator.eq, operator.ne: operator.ne,
    operator.truth: operator.truth, operator.not_: operator.truth, bool: operator.truth,
}  # fmt: skip
"""Functions of numbers by whose answers a program goes on, and what asks the same."""


SPECIAL_CALL_RULES: tuple[Callable[[MonitorRun, NativeCall], Any], ...] = (
    _asks_for_exception,
    _of_autograd,
    _asks_whether_compiling,
    _tells_address,
    _leaves_quietly,
    _takes_part_already,
    _under_torch_functions,
    _goes_to_current_gpu,
    _with_strangers,
    _resizes,
    _answers_in_python,
    _of_lists,
    _reads_constant,
    _asks_for_truth,
    _asks_for_values,
    _gives_numbers,
    _gives_number,
    _of_varying_lists,
    _lends,
    _draws,
    _derives,
    _takes_numbers,
    _tells_sizes,
    _reads_attribute,
    _folds,
    _computes,
)
"""In this order: what comes behind `_lends` may find other numbers among the arguments, and what
comes behind `_takes_numbers` finds none in tensors."""

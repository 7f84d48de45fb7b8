"""Native calls are judged by their annotation, and recorded when they have returned (Figure 12)."""

from __future__ import annotations

import _abc
import abc
import collections
import contextvars
import functools
import inspect
import itertools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from magpy_like.annotation import Annotation, RelationKind, ValueRead
from magpy_like.monitor import (
    addresses,
    attributes,
    autograd_nodes,
    devices,
    draws,
    foretold,
    handled,
    lifted,
    locks,
    metadata,
    specials,
)
from magpy_like.monitor.arguments import (
    answers_in_python,
    describe,
    holds_tensor,
    is_followed,
    is_instance,
    is_number_like,
    tensors_in,
)
from magpy_like.monitor.constants import VALUE_READERS
from magpy_like.monitor.containers import CONTAINERS, hashes_in_python
from magpy_like.monitor.data_shapes import declared_shape
from magpy_like.monitor.expressions import is_liftable, is_number
from magpy_like.monitor.failing import may_succeed
from magpy_like.monitor.gathered import JOINS, Gathered, Growing
from magpy_like.monitor.inside import keep_objects, look_at_functions, look_for_strangers
from magpy_like.monitor.modes import SETTERS
from magpy_like.monitor.native_looks import (
    LOOKS_INSIDE,
    SHAPELESS,
    is_by_key,
    look_at_cached,
    look_at_callbacks,
    look_at_numpy_errors,
    look_at_tensors,
    look_inside,
)
from magpy_like.monitor.operator_graph import MAKES_SEVERAL
from magpy_like.monitor.reads import follow, inputs_of, number_at
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.region import ASK_WHETHER_COMPILING, hears_what_eager_hears
from magpy_like.monitor.repeated_calls import SHOWN, names_caller, repeatable
from magpy_like.monitor.split import LENGTH_VARIES, Effect, Look, Split
from magpy_like.monitor.tensors_as_numbers import dimensions, with_numbers
from magpy_like.monitor.twin import hint
from magpy_like.monitor.writes import write
from magpy_like.native import lookup_in_type
from magpy_like.native.kinds import isinstance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.values import (
    answers_for_itself,
    is_plain,
    storage_of,
)

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]

_CUSTOM_FUNCTION = (
    torch.autograd.Function.apply.__func__,
    torch._C._FunctionBase.__dict__["apply"],
)
_TRANSFORMS = (
    torch._functorch.vmap.vmap_impl,
    torch._functorch.eager_transforms.grad_impl,
    torch._functorch.eager_transforms.grad_and_value_impl,
)
"""What ``torch.func`` makes of a function when it is called."""
_FOLLOWED = (*_CUSTOM_FUNCTION, *_TRANSFORMS)
"""A custom autograd function, or a transformed one, is one operator, but its Python code is
followed for what it reads."""

_KEEPS_ALL_AS_IS = {
    torch.Tensor.requires_grad_: "changes which tensors take part in gradients",
    torch._C.TensorBase.__dict__["_make_subclass"].__func__: "makes a parameter",
    **dict.fromkeys(
        (torch.Tensor.resize_, torch.Tensor.resize_as_, torch.resize_as_),
        "changes a tensor's storage",
    ),
}
"""Operators that ask of the ones before them what no compiled graph has; the graph runs one by one
then."""

_RUNS_AS_IS = {torch.utils.checkpoint.checkpoint: "runs its function again in the backward pass"}
"""Operators that no graph compiler takes as they are meant; what lies between is compiled."""

_CALLS_LATER = {torch.autograd.grad, *_KEEPS_ALL_AS_IS, *_RUNS_AS_IS, *_TRANSFORMS}
"""Operators that may call what they are given at every later call."""

_RESIZES = {torch.Tensor.resize_, torch.Tensor.resize_as_, torch.resize_as_}

_DEPENDS_ON_NOTHING = {
    list.append,
    list.extend,
    set.add,
    collections.deque.append,
    collections.deque.appendleft,
}
"""Changes that can be repeated on whatever the container holds by then."""


class NativeCall:
    """A call of native code, between the moment it starts and the one its result is there."""

    __slots__ = ("annotation", "args", "kwargs", "on_graph", "operation")

    def __init__(
        self,
        annotation: Annotation | None,
        operation: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        on_graph: bool,
    ) -> None:
        self.annotation = annotation
        self.operation = operation
        self.args = args
        self.kwargs = kwargs
        self.on_graph = on_graph


def _is_outside(rec: Recording, tensor: Any) -> bool:
    """Whether a tensor is from outside, or shares its memory with one that is."""
    inputs = (rec.refs.get_node_by_id(i) for _, i in rec.operators.inputs if isinstance(i, int))
    variables = (node.variable for node in inputs)
    return rec.node(tensor) is not None or any(
        isinstance(other, torch.Tensor) and storage_of(other) == storage_of(tensor)
        for other in variables
    )


def native(
    run: MonitorRun,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Token:
    """An annotated operation is about to run (section 5.3.1)."""
    rec = run.recording
    if run.side is not None:
        run.side.check_call(annotation, operation, args, kwargs)
    on_graph = annotation.as_op_node and not rec.inside
    if operation in handled.ASKS and not rec.inside:
        return handled.ask(run)
    if operation in autograd_nodes.KEEPS and not rec.inside:
        return autograd_nodes.keep(run, operation, args, kwargs)
    if operation is torch.autograd.grad and rec.hooks and not rec.inside:
        raise autograd_nodes.looked_through(rec)
    if operation in ASK_WHETHER_COMPILING and run.at and hears_what_eager_hears(run.at):
        run.suspended += 1
        return _finish_asking_in_eager, None
    if operation in addresses.TELLS and not rec.inside and len(args) == 1 and not kwargs:
        if (told := addresses.tell(run, operation, args[0])) is not None:
            return told
    if locks.leaves_quietly(rec, operation, args):
        return finish_pure, NativeCall(None, operation, args, kwargs, False)
    if torch._C._len_torch_function_stack():
        if operation in devices.ASKS_FOR_OVERRIDES:
            return _finish_asking_for_overrides, (operation, args)
        _look_at_default_device(rec, operation, on_graph)
    if rec.inside:
        look_for_strangers(rec, args, kwargs)
    if operation in _RESIZES and _is_outside(rec, args[0]):
        raise Split("changes the storage of a tensor from outside")
    if annotation.as_op_node and answers_in_python(operation, args):
        for value in args:
            _offer(rec, value)
        return finish_followed, None
    if args and id(args[0]) in rec.operators.lists and not rec.inside:
        token = _of_list(run, annotation, operation, args, kwargs)
        if token is not None:
            return token
    reads_constant = operation in VALUE_READERS and rec.constants.hold(*args, *kwargs.values())
    if reads_constant and holds_tensor((args, *kwargs.values())) and not rec.inside:
        return _finish_constant, NativeCall(annotation, operation, args, kwargs, False)
    if foretold.asks_for_truth(operation, args):
        foretold.foretell_branch(run, args[0])
        return finish_pure, NativeCall(None, operation, args, kwargs, False)
    if foretold.asks_for_values(operation, args) and holds_tensor(args):
        try:
            foretold.foretell_values(run, operation, args, kwargs)
            return finish_pure, NativeCall(None, operation, args, kwargs, False)
        except Split:
            if not foretold.gives_numbers(operation, args):
                raise
    if foretold.gives_numbers(operation, args) and not rec.inside:
        run.lifted.fix_sizes(args[0])
        return _finish_items, (operation, args[0])
    if operation in _ITEMS and not rec.inside and len(args) == 1 and not kwargs:
        if isinstance(args[0], torch.Tensor):
            return _finish_item, (operation, args)
    if not rec.inside:
        _lend(run, annotation, args, kwargs)
    if annotation.random and not rec.inside:
        return draws.draw(run, operation, args, kwargs)
    if (derived := draws.derives(run, operation, args, kwargs)) is not None:
        return derived
    if not rec.inside:
        numbers: list[Any] = []
        args, kwargs = with_numbers(operation, args, kwargs, functools.partial(_read, run, numbers))
        if not on_graph:
            run.lifted.settle(numbers)
        elif run.lifted:
            run.lifted.settle(dimensions(operation, args, kwargs))
    if _looks_at_sizes(run, annotation, operation, args):
        run.lifted.settle((args[1:], tuple(kwargs.values())))
        if operation is len:
            run.suspended += 1  # Tensor.__len__ is written in Python
            return _finish_length, (operation, args, kwargs)
        return _finish_metadata, (operation, args, kwargs)
    if operation is getattr and isinstance(args[0], torch.Tensor) and isinstance(args[1], str):
        if isinstance(lookup_in_type(type(args[0]), args[1]), types.GetSetDescriptorType):
            return run.read_tensor_attribute(args[0], args[1])
    if run.lifted and run.lifted.any(args) and not kwargs and lifted.computes(operation, args):
        return finish_computed, (operation, args)
    folds = operation in lifted.FOLDS and len(args) == 1 and not kwargs
    if folds and isinstance(args[0], list | tuple) and run.lifted.any_in(args):
        _offer(rec, args[0])  # it may be from outside, and have other elements besides
        return _finish_fold, (operation, args)
    if annotation.replay:
        if rec.inside:
            raise Effect(f"calls {describe(operation)} inside an operator")
    elif not annotation.as_op_node:
        if not annotation.pure_closure:
            raise Split(annotation.reason or f"calls {describe(operation)}")
        look_at_tensors(run, annotation, operation, args, kwargs)
    if isinstance(operation, np.ufunc | _NUMPY):
        look_at_numpy_errors(rec)
    if operation in specials.ASKS:
        specials.ask_class(rec, operation, args)
    if operation in _TELLS_SIGNATURE and args:
        attributes.read_signature(rec, args[0])
    by_key = is_by_key(operation, kwargs)
    written = annotation.output.relation
    if written is not None and written.access == "write" and write(run, annotation, args, kwargs):
        return finish_pure, NativeCall(annotation, operation, args, kwargs, False)
    if annotation.calls:
        look_at_callbacks(rec, annotation, args, kwargs)
    if getattr(operation, "__name__", "") in LOOKS_INSIDE:
        for value in (*args, *kwargs.values()):
            look_inside(rec, operation, value)
    changed = []
    is_of_sets = getattr(operation, "__objclass__", None) in (set, frozenset) or operation is bool
    for position, value in inputs_of(args, kwargs):
        wanted = annotation.input(position)
        if run.lifted and not on_graph and position not in SHOWN.get(operation, ()):
            _settle(run, operation, wanted.value_read, value)
        elif on_graph and type(value) is str and run.lifted:
            run.lifted.settle(value)  # an operator's mode, not a value
        if is_plain(value):
            if operation in TELLS_OBJECTS:
                rec.tell_apart(value)
            continue
        if operation is set.pop or (wanted.value_read in _GOES_THROUGH and not is_of_sets):
            addresses.look_at_order(rec, value)
        if wanted.value_read not in _TELL_NO_METHODS:
            specials.look_for_all(rec, value)
        if wanted.in_place and not isinstance(value, torch.Tensor):
            changed.append(value)
        elif on_graph:
            if is_number_like(value):
                raise Split(f"gives a {type(value).__qualname__} to a tensor operator")
            if rec.length_varies(value):
                raise Split(LENGTH_VARIES)
            _offer(rec, value)
        elif by_key and position != "key":
            rec.visit(value, ValueRead.ELEMENTS)
        else:
            rec.visit(value, wanted.value_read)
        if not on_graph and wanted.value_read in _COMPARES:
            rec.compare(value)
    # Effects come last: where the program splits at this call, a mock that had them would do what
    # the call behind it does, too.
    if annotation.replay:
        rec.calls.append(repeatable(rec, operation, args, kwargs))
        if names_caller(operation, args, kwargs):
            run.called_instead = rec.calls[-1]
    for value in changed:
        change(rec, operation, value, args, kwargs)
    if getattr(operation, "__name__", "") in MAKES_SEVERAL and args and on_graph:
        if isinstance(args[0], torch.Tensor) and _data_decides_sizes(rec, args[0]):
            run.lifted.fix_sizes(args[0])
    relation = annotation.output.relation
    if relation is not None and relation.access == "read":
        follow(run, annotation, args, kwargs)
    if on_graph and operation in _CALLS_LATER:
        look_at_functions(rec, args)
    if annotation.as_op_node:
        rec.inside += 1
        if on_graph:
            rec.running_as_is = None
        if on_graph and operation in _KEEPS_ALL_AS_IS:
            rec.runs_as_is = f"{describe(operation)} {_KEEPS_ALL_AS_IS[operation]}"
        elif on_graph and kwargs.get("requires_grad") is True:
            rec.runs_as_is = f"{describe(operation)} makes a tensor that gradients are collected in"
        elif on_graph and operation is torch.autograd.grad:
            rec.stays_whole = f"{describe(operation)} takes gradients inside"
        if on_graph and operation in _RUNS_AS_IS:
            rec.running_as_is = f"{describe(operation)} {_RUNS_AS_IS[operation]}"
        if on_graph and operation in _CUSTOM_FUNCTION:
            keep_objects(rec, args)
            if torch._C._len_torch_function_stack():
                rec.running_as_is = f"{describe(operation)} goes backward under a default device"
        if on_graph:
            rec.given = {id(tensor) for tensor in tensors_in((args, kwargs))}
            rec.dynamic_inside = False
        if operation not in _FOLLOWED:
            run.suspended += 1
            return _finish_operator_suspended, NativeCall(
                annotation, operation, args, kwargs, on_graph
            )
        return _finish_operator, NativeCall(annotation, operation, args, kwargs, on_graph)
    if (annotation.replay or isinstance(operation, _RUNS_PYTHON)) and not (
        _is_given_code(operation, annotation, args, kwargs)
    ):
        if isinstance(operation, functools._lru_cache_wrapper):
            if rec.is_born(operation):
                raise Split(f"calls {describe(operation)}, whose cache it has made")
            look_at_cached(rec, (*args, *kwargs.values()))
        run.suspended += 1
        return _finish_suspended, NativeCall(annotation, operation, args, kwargs, False)
    return _finish_read if relation is not None else finish_pure, NativeCall(
        annotation, operation, args, kwargs, False
    )


def _finish_asking_for_overrides(run: MonitorRun, asked: tuple[Any, Any], result: Any) -> Any:
    """A default device does nothing to a function that is written in Python."""
    operation, args = asked
    with devices.held([]):
        return operation(*args)


def _finish_asking_in_eager(run: MonitorRun, _: None, result: Any) -> bool:
    run.suspended -= 1
    return False


def _look_at_default_device(rec: Recording, operation: Any, on_graph: bool) -> None:
    """The graph names the default device where tensors are made, but not inside an operator.

    Raises:
        Effect, Split: it would have to know of another one than that at its beginning.
    """
    makes = rec.inside and operation in devices.CONSTRUCTORS
    if makes or (on_graph and operation in _RUNS_AS_IS):
        reason = f"{describe(operation)} needs the default device inside an operator"
        if devices.default_device() != rec.default_device:
            raise (Effect if makes else Split)(reason)
        rec.runs_as_is = reason


_NUMPY = type(np.sum)
_RUNS_PYTHON = (types.FunctionType, functools._lru_cache_wrapper, _NUMPY)
"""Kinds of operations that may be Python code: what an annotation says of one is all there is."""


def _is_given_code(
    operation: Any, annotation: Annotation, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether Python code of the program's runs in an operation, which is to be followed."""
    if isinstance(operation, _NUMPY):
        return any(map(_calls_back, (*args, *kwargs.values())))
    given = dict(inputs_of(args, kwargs))
    return any(is_followed(given.get(position)) for position in annotation.calls)


def _calls_back(value: Any) -> bool:
    """Whether NumPy may call an argument, or a method of it such as ``__array__``."""
    called = types.FunctionType | types.MethodType | functools.partial
    return isinstance(value, called) or is_instance(value)


_ITEMS = {
    int, float, torch.Tensor.item, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__,
}  # fmt: skip
"""Ways to read a tensor's only value as a number."""


def _finish_item(run: MonitorRun, read: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    if not is_number(result):
        raise Look(f"reads a tensor's value into Python, as a {type(result).__name__}")
    number = run.lifted.item(*read, result)
    run.account()
    return number


def _read(run: MonitorRun, numbers: list[Any], tensor: torch.Tensor) -> Any:
    """The number that native code is about to take out of a tensor; it joins ``numbers``.

    Raises:
        Split: a tensor of a run beside the program has no value.
    """
    if isinstance(tensor, FakeTensor):
        raise Split("takes a number out of a tensor")
    read: Any = int if tensor.dtype is torch.bool else torch.Tensor.item
    number = run.lifted.item(read, (tensor,), read(tensor))
    run.account()
    numbers.append(number)
    return number


def _finish_items(run: MonitorRun, read: tuple[Any, torch.Tensor], result: Any) -> Any:
    if type(result) is not list:
        return _finish_item(run, (read[0], (read[1],)), result)
    numbers = run.lifted.items(*read, result)
    run.account()
    return numbers


def _finish_constant(run: MonitorRun, done: NativeCall, result: Any) -> None:
    run.account()
    run.recording.constants.lend(done.args, result)
    run.recording.bear(result)


_MOVES = {
    tuple, list, zip, enumerate, reversed, iter, next, len, itertools.chain, list.append,
    list.extend, list.insert, list.copy, list.pop, dict.values, dict.items, dict.get, torch.Size,
    torch.Size.__new__,
}  # fmt: skip
"""Functions that hand on what a container holds without looking at it."""


def _lend(
    run: MonitorRun, annotation: Annotation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Numbers that vary in containers which a call goes through are lifted."""
    relation = annotation.output.relation
    for position, value in inputs_of(args, kwargs):
        read = annotation.input(position).value_read
        shown = relation is not None and relation.of == position and relation.kind in _SHOWS
        if shown or read in _GOES_THROUGH:
            run.lend(value, deep=read is ValueRead.ALL)


def look_at_all(
    run: MonitorRun,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """A call looks at its arguments as those of ``operation`` do, which makes a new object."""
    rec = run.recording
    _lend(run, annotation, args, kwargs)
    for position, value in inputs_of(args, kwargs):
        read = annotation.input(position).value_read
        _settle(run, operation, read, value)
        rec.visit(value, read)
        if read in _COMPARES:
            rec.compare(value)


_SHOWS = (RelationKind.ITERATION, RelationKind.COPY)
_GOES_THROUGH = (ValueRead.ELEMENTS, ValueRead.PAIRS, ValueRead.ALL)


def _settle(run: MonitorRun, operation: Any, read: ValueRead, value: Any) -> None:
    """An argument is read in this way: numbers in it that vary are guarded, if it is looked at."""
    if read not in _LIKE_TYPES and (operation not in _MOVES or is_liftable(value)):
        run.lifted.settle(_keys_of(value) if operation is dict else value)


def _keys_of(value: Any) -> Any:
    """What a dictionary made of a value hashes, as far as that can be told beforehand."""
    if isinstance(value, dict):
        return tuple(dict.keys(value))
    return value.__reduce__()[1][:1] if type(value) is zip else value


_COMPARES = (ValueRead.IDENTITY, ValueRead.KEYS, ValueRead.PAIRS, ValueRead.ALL)
"""Looks at an object that may compare it with others, or with itself."""
_LIKE_TYPES = (ValueRead.NONE, ValueRead.TYPE)
"""Looks at a number that tell no more than the guard on its type."""
TELLS_OBJECTS = (id, operator.is_, operator.is_not)
"""Functions to which equal values may be different ones."""
_TELL_NO_METHODS = (*_LIKE_TYPES, ValueRead.IDENTITY)
"""Looks at an object that ask its class for no special method."""


def _looks_at_sizes(
    run: MonitorRun, annotation: Annotation, operation: Any, args: tuple[Any, ...]
) -> bool:
    """Whether a call tells of a tensor's sizes, and these may vary."""
    rec = run.recording
    if rec.inside or not args or not isinstance(args[0], torch.Tensor):
        return False
    if annotation.as_op_node or not annotation.pure_closure:
        return False
    if rec.twin is None and not rec.operators.has_data_shape(args[0]):
        return False
    if annotation.input(0).value_read not in (ValueRead.TYPE, ValueRead.LENGTH):
        return False
    relation = annotation.output.relation
    if relation is not None and relation.kind is not RelationKind.LENGTH:
        return False
    if operation is len and type(args[0]).__len__ is not torch.Tensor.__len__:
        return False
    return getattr(operation, "__name__", "") not in SHAPELESS | metadata.UNCHECKED


def _finish_metadata(
    run: MonitorRun, looked: tuple[Any, tuple[Any, ...], dict[str, Any]], result: Any
) -> Any:
    operation, args, kwargs = looked
    run.account()
    if kwargs:  # x.size(dim=0)
        operation = functools.partial(operation, **kwargs)
    return run.lifted.metadata(operation, args, result)


def _finish_length(run: MonitorRun, looked: Any, result: Any) -> Any:
    run.suspended -= 1
    return _finish_metadata(run, looked, result)


def _finish_fold(run: MonitorRun, folded: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    return run.lifted.fold(*folded, result)


def finish_computed(run: MonitorRun, payload: tuple[Any, tuple[Any, ...]], result: Any) -> Any:
    """A result that is no ``int`` or ``float`` is not lifted, so the operands must not differ."""
    operation, operands = payload
    if is_liftable(result):
        return run.lifted.compute(operation, operands, result)
    run.lifted.settle(operands)
    return None


_TELLS_SIGNATURE = {inspect.signature, inspect.getfullargspec, typing.get_type_hints}


def _of_list(
    run: MonitorRun,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Token | None:
    """An operation on a list as long as a loop has rounds; None when its length is looked at."""
    rec = run.recording
    operators, rest = rec.operators, (*args[1:], *kwargs.values())
    given = operators.lists[id(args[0])]
    if isinstance(given, Growing) and operation is list.append:
        return finish_pure, NativeCall(annotation, operation, args, kwargs, False)
    if isinstance(given, Gathered) and operation is len and not rest:
        return _finish_count, given
    plain = all(type(value) is int for value in rest) and not run.lifted.any(rest)
    joins = isinstance(given, Gathered) and operation in JOINS and given.is_whole()
    if not (joins and plain):
        operators.look_at(given.value)
        return None
    rec.inside += 1
    rec.given = {id(tensor) for tensor in given.value}
    rec.dynamic_inside = False
    run.suspended += 1
    return _finish_operator_suspended, NativeCall(annotation, operation, args, kwargs, True)


def _finish_count(run: MonitorRun, given: Gathered, result: Any) -> Any:
    expression = run.lifted.expression(given.count)
    if expression is None:
        return None
    return run.lifted.lift(result, expression, run.lifted.twin(given.count))


def _data_decides_sizes(rec: Recording, tensor: torch.Tensor) -> bool:
    twin = rec.twin_of(tensor)
    unknown = twin is not None and any(hint(size) is None for size in twin.shape)
    return unknown or rec.operators.has_data_shape(tensor)


def _offer(rec: Recording, value: Any) -> None:
    """An operator looks at its whole argument, however deep its tensors lie."""
    if isinstance(value, (*CONTAINERS, np.ndarray)):
        rec.visit(value, ValueRead.ALL)


def change(
    rec: Recording,
    operation: Any,
    value: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """``operation`` is about to change ``value``, one of its arguments, in place."""
    if isinstance(value, contextvars.ContextVar):
        rec.meet_context(value)
        rec.store(rec.constant(value), Relation(RelationKind.CONTEXT), args[-1])
        return
    node = rec.node(value)
    if node is None:
        return
    repeats = operation in _DEPENDS_ON_NOTHING and not kwargs and not node.rewritten
    if isinstance(value, set) and repeats:
        repeats = not (hashes_in_python(args[1]) or rec.asks_members(node))
    if repeats and (operation is not list.extend or isinstance(args[1], list | tuple)):
        rec.snapshot(node)
        rec.refs.in_place(node)
        arguments = tuple(list(a) if operation is list.extend else a for a in args[1:])
        rec.replays.append((node, operation, arguments))
        node.replays.append(operation)
        return
    rec.rewrite(node)


_ASKS_REGISTRY = (_abc._abc_instancecheck, _abc._abc_subclasscheck)
"""What they answer changes when a class is registered with an abstract one."""


def finish_pure(run: MonitorRun, done: NativeCall, result: Any) -> None:
    """A call that is no operator of the graph gave ``result``."""
    annotation = done.annotation
    if annotation is not None and annotation.state_read:
        run.recording.state_reads.append((done.operation, done.args, done.kwargs, result))
        run.told_compiling |= result is True and done.operation in ASK_WHETHER_COMPILING
        run.account()  # torch makes a tensor to find out which device is the default one
    if isinstance(done.operation, functools._lru_cache_wrapper):
        run.recording.cached_calls.append((done.operation, done.args, done.kwargs, result))
    relation = None if annotation is None else annotation.output.relation
    if relation is not None and relation.access == "read":
        if relation.kind is RelationKind.TYPE and isinstance(result, type) and len(done.args) == 1:
            if not run.recording.is_born(result):
                run.recording.constant(result)
    if relation is not None and relation.kind is RelationKind.CONSTANT:
        run.account()
        if not is_plain(result) and run.recording.node(result) is None:
            run.recording.keep(result)
    if done.operation in _ASKS_REGISTRY:
        token = abc.get_cache_token()
        run.recording.state_reads.append((abc.get_cache_token, (), {}, token))
    if any(isinstance(value, torch.Tensor) for value in (*done.args, *done.kwargs.values())):
        run.account()
        run.recording.constants.lend(done.args, result)
    if type(result) is str and not all(map(is_plain, (*done.args, *done.kwargs.values()))):
        addresses.finish_text(run, None, result)
    run.recording.bear(result)


def _finish_read(run: MonitorRun, done: NativeCall, result: Any) -> Any:
    """The result was there before, as that of ``getattr(counter, "n")``: a number may be lifted."""
    finish_pure(run, done, result)
    assert done.annotation is not None and done.annotation.output.relation is not None
    if not is_number(result):
        return None
    place = number_at(run.recording, done.annotation.output.relation, done.args, done.kwargs)
    return None if place is None else run.lift_element(*place, result)


def finish_followed(run: MonitorRun, _: None, result: Any) -> None:
    """Special methods that were followed gave ``result``."""
    run.recording.bear(result)


def tensor_operation(args: tuple[Any, ...]) -> Token:
    """For an instruction that runs a tensor operator which the recording knows of already."""
    return finish_pure, NativeCall(None, None, args, {}, False)


def _finish_suspended(run: MonitorRun, done: NativeCall, result: Any) -> None:
    run.suspended -= 1
    finish_pure(run, done, result)


def _finish_operator_suspended(run: MonitorRun, done: NativeCall, result: Any) -> None:
    run.suspended -= 1
    _finish_operator(run, done, result)


def _finish_operator(run: MonitorRun, done: NativeCall, result: Any) -> None:
    run.recording.inside -= 1
    _record_operator(run, done, result)
    run.account()  # recording one may itself copy a constant tensor


def _record_operator(run: MonitorRun, done: NativeCall, result: Any) -> None:
    if not done.on_graph or run.recording.inside:
        return
    annotation = done.annotation
    assert annotation is not None
    for tensor in tensors_in(result):
        if answers_for_itself(tensor):
            raise Look(f"makes a {type(tensor).__qualname__}, which has a __torch_function__")
    for position, value in inputs_of(done.args, done.kwargs):
        if annotation.writes_to(position, done.args):
            for tensor in tensors_in(value):
                run.recording.note_write(tensor)
    on_tensors = holds_tensor(done.args) or holds_tensor(tuple(done.kwargs.values()))
    if annotation.global_state and done.operation not in SETTERS:
        run.recording.operators.sets_modes = True
    if annotation.global_state or holds_tensor(result):
        shape = declared_shape(annotation, done.operation)
        run.recording.operator(done.operation, done.args, done.kwargs, result, shape)
    elif on_tensors and result is None:
        run.recording.operator(done.operation, done.args, done.kwargs, result)
    elif on_tensors and (done.operation in _REPEATS or not _about_metadata(result)):
        raise Look(f"{describe(done.operation)} reads a tensor's value into Python")
    elif not on_tensors:
        run.lifted.settle((done.args, tuple(done.kwargs.values())))
        finish_pure(run, done, result)


_REPEATS = (operator.mul, operator.imul)
"""Python's operators that repeat a text as often as a tensor says."""


def _about_metadata(result: Any) -> bool:
    return isinstance(result, torch.dtype | torch.device | torch.Size | torch.layout | str)


_SUSPENDED = (
    _finish_asking_in_eager,
    _finish_suspended,
    _finish_operator_suspended,
    _finish_length,
    autograd_nodes.finish_registered,
    *draws.FINISHERS,
)


def undo(run: MonitorRun, finish: Callable[..., None], payload: Any) -> str | None:
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
    if finish in (finish_computed, _finish_fold):
        run.lifted.settle(payload[1])
    elif finish is _finish_item:
        operation, (tensor,) = payload
        run.lifted.fix_sizes(tensor)
        if tensor.numel() == 1:
            return f"catches what {describe(operation)} raises for a tensor's value"
    elif isinstance(payload, draws.Drawing):
        return f"catches what {describe(payload.operation)} raises for numbers that vary"
    if finish in (_finish_operator, _finish_operator_suspended):
        run.recording.inside -= 1
        by_values = payload.on_graph and not run.recording.inside and _by_values(run, payload)
        run.account()
        if by_values:
            return f"catches what {describe(payload.operation)} raises for a tensor's values"
    return None


def _by_values(run: MonitorRun, call: NativeCall) -> bool:
    """Whether a call of an operator, which has raised, may not raise where the guard holds."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    if run.lifted.any(tuple(leaves)):
        return True
    for value in leaves:
        if isinstance(value, torch.Tensor):
            run.lifted.fix_sizes(value)
    return may_succeed(call.operation, call.args, call.kwargs)

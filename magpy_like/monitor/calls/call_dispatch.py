"""Dispatch of calls (Figure 12): Python functions are followed, native calls use annotations."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from magpy_like.annotation import RelationKind, ValueRead, lookup, resolve
from magpy_like.annotation.lookup import NULL as NO_RECEIVER
from magpy_like.monitor.calls import torch_wrappers
from magpy_like.monitor.calls.argument_kinds import describe
from magpy_like.monitor.calls.call_inputs import read_all_inputs
from magpy_like.monitor.calls.checkpoints import checkpoint_calls
from magpy_like.monitor.calls.native_calls import begin_native_call
from magpy_like.monitor.calls.torchscript import ScriptCall, torchscript_split
from magpy_like.monitor.disabled_functions import is_disabled
from magpy_like.monitor.objects import attributes, class_creation, class_lookup
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.torch_state import autograd_nodes
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, Relation
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_identity
from magpy_like.split_points import Split, unknown_value_split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.torchscript import ScriptFunction

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]


def call(
    context: Context, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token | None:
    """Record ``function(*args, **kwargs)``, which is about to run (Figure 12).

    Returns:
        The function that receives the result, with its payload; None for a call that continues in
        Python code, which the monitor follows.

    Raises:
        Split: the call is dynamic.
    """
    rec = context.recording
    function, args, kwargs = _unwrap(rec, function, args, kwargs)
    if args and is_instance(args[0], functools.partial) and _creates_partial(function):
        _read_partial(rec, args[0])  # the new partial consists of its parts
    _split_at_controls(context, function)
    kind = type(function)
    if kind is types.FunctionType:
        return _call_function(context, function, args, kwargs)
    if kind is ScriptFunction:
        raise torchscript_split(function)
    if kind is ScriptCall:
        function = function.script
    annotation = lookup(function)
    operation = function
    if annotation is not None:
        guard_callable_identity(rec, function)
    else:
        operation, receiver = resolve(function)
        if receiver is not NO_RECEIVER:
            args = (receiver, *args)
            _read_receiver(rec, function, operation, receiver)
        if is_instance(operation, types.FunctionType):
            class_lookup.read_class(rec, kind, "__call__")
            _check_enabled(operation)
            return _call_annotated(context, operation, args, kwargs)
        if operation is type.__call__ and args and is_instance(args[0], type):
            function = operation = args[0]  # the metaclass delegates to type.__call__
            args, annotation = args[1:], lookup(operation)
        elif operation is not function:
            annotation = lookup(operation)
    if args and autograd_nodes.is_node(rec, args[0]):
        if is_instance(operation, types.MethodDescriptorType):
            return autograd_nodes.call_node_method(context, operation, args, kwargs)
    if annotation is not None:
        return begin_native_call(context, annotation, operation, args, kwargs)
    if is_instance(function, type):
        return instantiate(context, function, args, kwargs)
    return _call_unannotated(rec, function, operation, args)


def _split_at_controls(context: Context, function: Any) -> None:
    """
    Raises:
        Split: torch.compiler.disable keeps the function out of records, or it is a control of
            torch's own compiler.
    """
    if torch_wrappers.is_disabled(function):
        wraps = torch_wrappers.role_of(function) is not None
        name = describe(torch_wrappers.original_of(function) if wraps else function)
        detail = f"calls {name}, which torch.compiler.disable has disabled"
        raise Split(SplitReason.DISABLED_FUNCTION, detail, name)
    if (reason := torch_wrappers.control_reason(function, context.frame)) is not None:
        name = f"{function.__module__}.{function.__name__}"
        raise Split(reason, f"calls {name}", name)


def _check_enabled(function: types.FunctionType) -> None:
    """
    Raises:
        Split: ``magpy_like.disable`` has disabled the function.
    """
    if is_disabled(function):
        name = describe(function)
        raise Split(SplitReason.DISABLED_FUNCTION, f"calls {name}, which is disabled", name)


def _unwrap(
    rec: Recording, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function inside bound methods and partials, with all of its arguments."""
    while True:
        if type(function) is types.MethodType:
            attributes.read_method(rec, function)
            function, args = function.__func__, (function.__self__, *args)
        elif is_instance(function, functools.partial):
            _read_partial(rec, function)
            kwargs = {**function.keywords, **kwargs}
            function, args = function.func, (*function.args, *args)
        else:
            return function, args, kwargs


def _call_function(
    context: Context,
    function: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Token | None:
    """Record a call of a Python function: it is followed unless it has an annotation or a rule."""
    rec = context.recording
    _check_enabled(function)
    if function is torch.nn.Module.__getattr__ and len(args) == 2:
        attributes.read_submodule(rec, *args)
        return None
    if function in checkpoint_calls.STEPS:
        return checkpoint_calls.STEPS[function](context, *args)
    if function is RemovableHandle.remove and (done := autograd_nodes.remove_hook(context, *args)):
        return done
    return _call_annotated(context, function, args, kwargs)


def _call_annotated(
    context: Context, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token | None:
    annotation = lookup(operation)
    if annotation is None:
        return None
    return begin_native_call(context, annotation, operation, args, kwargs)


def _read_receiver(rec: Recording, function: Any, operation: Any, receiver: Any) -> None:
    """Record which object a bound native method, ``function``, is bound to."""
    bound = rec.variables.node(function)
    if bound is not None and receiver is not function:
        rec.reads.record(bound, Relation(RelationKind.SLOT, "__self__"), receiver)
    elif not is_instance(operation, types.FunctionType):
        guard_callable_identity(rec, function)


def _call_unannotated(
    rec: Recording, function: Any, operation: Any, args: tuple[Any, ...]
) -> Token | None:
    """Allow a call of native code without an annotation inside a running operator of torch.

    Raises:
        Split: no operator is running, or the code does not belong to torch.
    """
    if is_instance(function, torch.jit.ScriptModule):
        raise Split(SplitReason.TORCHSCRIPT, "calls a TorchScript module")
    if rec.running.depth and str(getattr(function, "__module__", "")).startswith("torch."):
        return None
    receiver = args[0] if args and is_instance(operation, types.MethodDescriptorType) else None
    raise unknown_value_split(
        receiver,
        SplitReason.UNANNOTATED_NATIVE_CALL,
        f"calls {describe(function)}, native code without an annotation",
        describe(function),
    )


def guard_callable_identity(rec: Recording, function: Any) -> None:
    """Guard the identity of a native callable such as an ``itemgetter``, which has hidden state."""
    node = rec.variables.node(function)
    if node is not None and not is_identity(function):
        node.facts.add(Fact.IDENTITY)


def _creates_partial(function: Any) -> bool:
    return is_instance(function, type) and issubclass(function, functools.partial)


def _read_partial(rec: Recording, partial: functools.partial[Any]) -> None:
    node = rec.variables.node(partial)
    if node is not None:
        for name in ("func", "args", "keywords"):
            part = getattr(partial, name)
            rec.reads.record(node, Relation(RelationKind.SLOT, name), part)
            if name != "func":
                rec.inspections.visit(part, ValueRead.ELEMENTS)


def instantiate(
    context: Context, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token:
    """Record a call of a class without an annotation.

    The monitor follows ``__new__`` and ``__init__`` in Python. A native one reads its arguments as
    the annotation of the class that defines it states.

    Raises:
        Split: the class is native code without an annotation.
    """
    rec = context.recording
    if not cls.__flags__ & HEAP_TYPE:
        raise Split(
            SplitReason.UNANNOTATED_NATIVE_CALL,
            f"calls {describe(cls)}, native code without an annotation",
            describe(cls),
        )
    meta = type(cls)
    if meta is not type:
        class_lookup.read_class(rec, meta, "__call__")
    for name in ("__new__", "__init__"):
        found = class_lookup.read_class(rec, cls, name)
        native = not is_instance(found, types.FunctionType | staticmethod | classmethod)
        if native and found is not NULL and found not in _KNOWN_CONSTRUCTORS:
            owner = next((b for b in cls.__mro__ if name in b.__dict__), cls)
            annotation = lookup(owner)
            if annotation is None:
                raise Split(
                    SplitReason.UNANNOTATED_NATIVE_CALL,
                    f"calls {describe(cls)}, whose {name} is native code without an annotation",
                    describe(cls),
                )
            read_all_inputs(context, annotation, owner, args, kwargs)
    return _adopt_instance, None


_KNOWN_CONSTRUCTORS = {object.__new__, object.__init__, type.__init__}


def _adopt_instance(context: Context, _: None, result: Any) -> None:
    context.recording.variables.add_new(result)
    class_creation.read_creation(context.recording, result)

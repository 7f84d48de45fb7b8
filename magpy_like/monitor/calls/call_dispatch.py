"""Calls: Python functions are followed, native ones are judged by their annotation (Figure 12)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from magpy_like.annotation import RelationKind, ValueRead, lookup, resolve
from magpy_like.annotation.lookup import NULL as NO_RECEIVER
from magpy_like.monitor.calls import checkpointed_functions
from magpy_like.monitor.calls.argument_kinds import describe
from magpy_like.monitor.calls.call_inputs import read_all_inputs
from magpy_like.monitor.calls.native_calls import begin_native_call
from magpy_like.monitor.calls.torchscript import ScriptCall, torchscript_split
from magpy_like.monitor.objects import attributes, class_lookup
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.torch_state import autograd_nodes
from magpy_like.native import NULL
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, Relation
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_identity
from magpy_like.split_points import Split, is_disabled, unknown_value_split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.torchscript import ScriptFunction

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]


def call(
    run: MonitorRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token | None:
    """``function(*args, **kwargs)`` is about to run.

    Returns what to do with the result, or None when the call is followed into Python code.

    Raises:
        Split: the call is dynamic.
    """
    rec = run.recording
    while True:
        kind = type(function)
        if kind is types.MethodType:
            attributes.read_method(rec, function)
            function, args = function.__func__, (function.__self__, *args)
        elif is_instance(function, functools.partial):
            _read_partial(rec, function)
            kwargs = {**function.keywords, **kwargs}
            function, args = function.func, (*function.args, *args)
        else:
            break
    if args and is_instance(args[0], functools.partial) and _makes_partial(function):
        _read_partial(rec, args[0])  # it is taken apart, and the new one has its parts
    if kind is types.FunctionType:
        if is_disabled(function):
            raise Split(
                SplitReason.DISABLED_FUNCTION,
                f"calls {describe(function)}, which is disabled",
                describe(function),
            )
        if function is torch.nn.Module.__getattr__ and len(args) == 2:
            attributes.read_submodule(rec, *args)
            return None
        if function in checkpointed_functions.STEPS:
            return checkpointed_functions.STEPS[function](run, *args)
        if function is RemovableHandle.remove and (done := autograd_nodes.remove_hook(run, *args)):
            return done
        annotation = lookup(function)
        return (
            None
            if annotation is None
            else begin_native_call(run, annotation, function, args, kwargs)
        )
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
            bound = rec.node(function)
            if bound is not None and receiver is not function:
                rec.record_read(bound, Relation(RelationKind.SLOT, "__self__"), receiver)
            elif not is_instance(operation, types.FunctionType):
                guard_callable_identity(rec, function)
        if is_instance(operation, types.FunctionType):
            class_lookup.read_class(rec, kind, "__call__")
            annotation = lookup(operation)
            return (
                None
                if annotation is None
                else begin_native_call(run, annotation, operation, args, kwargs)
            )
        if operation is type.__call__ and args and is_instance(args[0], type):
            function = operation = args[0]  # what a metaclass makes of a call in the end
            args, annotation = args[1:], lookup(operation)
        elif operation is not function:
            annotation = lookup(operation)
    if args and autograd_nodes.is_node(rec, args[0]):
        if is_instance(operation, types.MethodDescriptorType):
            return autograd_nodes.call_node_method(run, operation, args, kwargs)
    if annotation is not None:
        return begin_native_call(run, annotation, operation, args, kwargs)
    if is_instance(function, type):
        return instantiate(run, function, args, kwargs)
    if is_instance(function, torch.jit.ScriptModule):
        raise Split(SplitReason.TORCHSCRIPT, "calls a TorchScript module")
    if rec.inside and str(getattr(function, "__module__", "")).startswith("torch."):
        return None  # the operator's own machinery
    receiver = args[0] if args and is_instance(operation, types.MethodDescriptorType) else None
    raise unknown_value_split(
        receiver,
        SplitReason.UNANNOTATED_NATIVE_CALL,
        f"calls {describe(function)}, native code without an annotation",
        describe(function),
    )


def guard_callable_identity(rec: Recording, function: Any) -> None:
    """What a native instance does, such as an ``itemgetter``, depends on state that it keeps."""
    node = rec.node(function)
    if node is not None and not is_identity(function):
        node.facts.add(Fact.IDENTITY)


def _makes_partial(function: Any) -> bool:
    return is_instance(function, type) and issubclass(function, functools.partial)


def _read_partial(rec: Recording, partial: functools.partial[Any]) -> None:
    node = rec.node(partial)
    if node is not None:
        for name in ("func", "args", "keywords"):
            part = getattr(partial, name)
            rec.record_read(node, Relation(RelationKind.SLOT, name), part)
            if name != "func":
                rec.visit(part, ValueRead.ELEMENTS)


def instantiate(run: MonitorRun, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token:
    """A call of a class without an annotation: its Python parts are followed, and native ones do
    with the arguments what those of their own class do.

    Raises:
        Split: the class is native, so nothing is known of what its construction does.
    """
    rec = run.recording
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
        made = class_lookup.read_class(rec, cls, name)
        native_maker = not is_instance(made, types.FunctionType | staticmethod | classmethod)
        if native_maker and made is not NULL and made not in _KNOWN_MAKERS:
            owner = next((b for b in cls.__mro__ if name in b.__dict__), cls)
            annotation = lookup(owner)
            if annotation is None:
                raise Split(
                    SplitReason.UNANNOTATED_NATIVE_CALL,
                    f"calls {describe(cls)}, whose {name} is native code without an annotation",
                    describe(cls),
                )
            read_all_inputs(run, annotation, owner, args, kwargs)
    return _adopt_instance, None


_KNOWN_MAKERS = {object.__new__, object.__init__, type.__init__}


def _adopt_instance(run: MonitorRun, _: None, result: Any) -> None:
    run.recording.bear(result)

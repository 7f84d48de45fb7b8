"""Compiled functions and modules inside a compiled region: they are part of the caller's record.

A wrapper around a compiled function would hide the reads of the function. A call of the wrapper is
therefore a call of the wrapped function, and other methods of a wrapper class are followed like
code of the program.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.annotation import RelationKind, ValueRead
from magpy_like.monitor.calls import torch_wrappers
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.plain_values import callable_name
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording  # which asks for a GPU

_ATTRIBUTES: dict[types.CodeType | type, str] = {}
"""The attribute that holds the wrapped object, by the code or the class of the wrapper."""
CODE: set[types.CodeType] = set()
"""The code of the methods of wrapper classes."""


def register_wrapper(wrapper: Any, attribute: str) -> None:
    """Register a wrapper function, or a class of wrapper modules, and its attribute."""
    if is_instance(wrapper, types.FunctionType):
        _ATTRIBUTES[wrapper.__code__] = attribute
        return
    _ATTRIBUTES[wrapper] = attribute
    methods = (getattr(method, "fget", method) for method in vars(wrapper).values())
    CODE.update(method.__code__ for method in methods if is_instance(method, types.FunctionType))


def is_wrapper(function: Any) -> bool:
    """True for a registered wrapper function, or an instance of a registered class."""
    return _attribute(function) is not None


def unwrap(function: Any) -> Any:
    """The wrapped function; ``function`` itself if it is not a wrapper."""
    attribute = _attribute(function)
    if attribute is not None:
        return vars(function)[attribute]
    if torch_wrappers.role_of(function) in _FOLLOWED:
        return torch_wrappers.original_of(function)
    return function


def read_wrapped(context: Context, function: Any) -> Any:
    """As ``unwrap``, for a callee of the program: the read of the attribute is recorded."""
    rec = context.recording
    if torch_wrappers.is_compiling_of_dynamo(function):
        return torch.compiler.is_compiling
    attribute, node = _attribute(function), rec.variables.node(function)
    if attribute is None and (role := torch_wrappers.role_of(function)) in _FOLLOWED:
        if role is torch_wrappers.Role.COMPILED and context.compiled_by_torch is None:
            context.note_compiled_by_torch(callable_name(unwrap(function)))
        if torch_wrappers.is_optimized_module(function):
            return _read_optimized(rec, function, node)
        attribute = torch_wrappers.ORIGINAL
    if attribute is None or node is None:
        return function
    rec.reads.record(node, Relation(RelationKind.ATTRIBUTE, attribute), unwrap(function))
    return unwrap(function)


def _attribute(function: Any) -> str | None:
    kind = type(function)
    return _ATTRIBUTES.get(function.__code__ if kind is types.FunctionType else kind)


_FOLLOWED = (torch_wrappers.Role.COMPILED, torch_wrappers.Role.TORCHS_OWN)
"""The wrappers of torch's whose calls are calls of what they wrap."""


def _read_optimized(rec: Recording, module: torch.nn.Module, node: Any) -> Any:
    """The module that one of torch's compiled modules wraps; hooks of its own are read.

    Raises:
        Split: it has hooks.
    """
    from magpy_like.monitor.objects import attributes  # needs the native helper

    if torch_wrappers.has_own_hooks(module):
        raise Split(
            SplitReason.TORCH_CONTROL,
            "calls a module that torch.compile returned, with hooks of its own",
            "it",
        )
    if node is not None:
        for name in torch_wrappers.HOOKS:
            hooks = module.__dict__[name]
            rec.reads.record(node, Relation(RelationKind.ATTRIBUTE, name), hooks)
            rec.inspections.visit(hooks, ValueRead.ELEMENTS)
        attributes.read_submodule(rec, module, "_orig_mod")
    return torch_wrappers.original_of(module)

"""Compiled functions and modules inside a compiled region: they are part of the caller's record.

A wrapper around a compiled function would hide the reads of the function. A call of the wrapper is
therefore a call of the wrapped function, and an attribute of a compiled object is one of the
original.
"""

from __future__ import annotations

import types
from collections.abc import Callable
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

_FUNCTIONS: dict[types.CodeType, str] = {}
"""The attribute that holds the wrapped function, by the code of the wrapper."""
_METHODS: set[types.CodeType] = set()
"""The code of wrapper functions that compiled objects make of their classes' methods at each read:
which one it is follows from the class."""
_OBJECTS: dict[type, str] = {}
"""The slot that holds the original, by the base class of compiled objects."""
_CLASSES: dict[type, Callable[[type], type]] = {}
"""What gives the original class, by the metaclass of wrapper classes."""
CODE: set[types.CodeType] = set()
"""The code of the methods through which native code calls compiled objects and classes, and sets
attributes of the latter."""


def register_wrapper(wrapper: Any, attribute: str) -> None:
    """Register a wrapper function, or the base class of compiled objects, and its attribute."""
    if is_instance(wrapper, types.FunctionType):
        _FUNCTIONS[wrapper.__code__] = attribute
    else:
        _OBJECTS[wrapper] = attribute
        CODE.add(wrapper.__call__.__code__)


def register_method_wrapper(wrapper: Any, attribute: str) -> None:
    """Register the wrapper function of a compiled object's methods."""
    register_wrapper(wrapper, attribute)
    _METHODS.add(wrapper.__code__)


def register_class_wrapper(metaclass: type, original: Callable[[type], type]) -> None:
    """Register the metaclass of wrapper classes."""
    _CLASSES[metaclass] = original
    methods = metaclass.__call__, metaclass.__setattr__, metaclass.__delattr__
    CODE.update(method.__code__ for method in methods)


def is_wrapper(function: Any) -> bool:
    """True for a function, object or class that ``compile`` has returned."""
    return _wrapped(function) is not function


def unwrap(function: Any) -> Any:
    """The wrapped function, object or class; ``function`` itself if it is not a wrapper."""
    wrapped = _wrapped(function)
    if wrapped is function and torch_wrappers.role_of(function) in _FOLLOWED:
        return torch_wrappers.original_of(function)
    return wrapped


def _wrapped(function: Any) -> Any:
    """What a wrapper of this package wraps; anything else itself."""
    kind = type(function)
    if kind is types.FunctionType:
        attribute = _FUNCTIONS.get(function.__code__)
        return function if attribute is None else vars(function)[attribute]
    slot = _slot_of(kind)
    if slot is not None:
        return object.__getattribute__(function, slot)
    for metaclass, original in _CLASSES.items():
        if issubclass(kind, metaclass):
            return original(function)
    return function


def read_wrapped(context: Context, function: Any) -> Any:
    """As ``unwrap``, for a callee of the program: the read of the attribute is recorded."""
    if torch_wrappers.is_compiling_of_dynamo(function):
        return torch.compiler.is_compiling
    if is_wrapper(function):
        return _read_wrapped(context.recording, function)
    role = torch_wrappers.role_of(function)
    if role not in _FOLLOWED:
        return function
    if role is torch_wrappers.Role.COMPILED and context.compiled_by_torch is None:
        context.note_compiled_by_torch(callable_name(unwrap(function)))
    if role is torch_wrappers.Role.TORCHS_OWN:
        context.hidden_code.add(torch_wrappers.original_of(function).__code__)
    return _read_original_of_torchs(context.recording, function)


def _read_wrapped(rec: Recording, wrapper: Any) -> Any:
    """What a wrapper of this package wraps: the read of the attribute is recorded."""
    target = _wrapped(wrapper)
    if is_instance(wrapper, type):
        rec.variables.constant(wrapper)
        rec.variables.constant(target)
        return target
    kind = type(wrapper)
    if kind is types.FunctionType and wrapper.__code__ in _METHODS:
        return target
    node = rec.variables.node(wrapper)
    if node is None:
        return wrapper
    if kind is types.FunctionType:
        relation = Relation(RelationKind.ATTRIBUTE, _FUNCTIONS[wrapper.__code__])
    else:
        relation = Relation(RelationKind.SLOT, _slot_of(kind))
    rec.reads.record(node, relation, target)
    return target


def read_original(rec: Recording, value: Any) -> Any:
    """The object whose state a compiled object shares; any other object itself.

    A program may refer to both. The locations of their attributes are those of the original.
    """
    return value if _slot_of(type(value)) is None else _read_wrapped(rec, value)


def _slot_of(kind: type) -> str | None:
    for base, slot in _OBJECTS.items():
        if issubclass(kind, base):
            return slot
    return None


_FOLLOWED = (torch_wrappers.Role.COMPILED, torch_wrappers.Role.TORCHS_OWN)
"""The wrappers of torch's whose calls are calls of what they wrap."""


def _read_original_of_torchs(rec: Recording, wrapper: Any) -> Any:
    """What one of torch's wrappers wraps: the read of the attribute is recorded."""
    node = rec.variables.node(wrapper)
    if torch_wrappers.is_optimized_module(wrapper):
        return _read_optimized(rec, wrapper, node)
    if node is None:
        return wrapper
    original = torch_wrappers.original_of(wrapper)
    rec.reads.record(node, Relation(RelationKind.ATTRIBUTE, torch_wrappers.ORIGINAL), original)
    return original


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

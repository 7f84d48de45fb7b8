"""Compiled objects: a module, or another callable object, whose calls run by records.

A compiled object **shares the ``__dict__`` of the original and answers with its class; only its
calls differ**. It is an instance of a class made for it, a subclass of the original's, so that
attributes, properties, hooks and all methods are the original's, whatever they override, and act on
the original's state. They run natively, with the compiled object as ``self``: what they call by
``self(...)`` or ``self.forward(...)`` is compiled. Programs are recorded on the original, which
stays as it is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from magpy_like.monitor.calls import compiled_callees, torch_wrappers
from magpy_like.native.instance_checks import is_instance
from magpy_like.records.dispatcher_making import make_dispatcher
from magpy_like.torch_patches import untraced
from magpy_like.wrapper_classes import (
    WrapperClass,
    class_methods,
    found_in_classes,
    make_wrapper_class,
    original_class,
)

STEP_METHODS = {
    ("lightning", "LightningModule"): (
        "training_step", "validation_step", "test_step", "predict_step",
    ),
    ("pytorch_lightning", "LightningModule"): (
        "training_step", "validation_step", "test_step", "predict_step",
    ),
}  # fmt: skip
"""Methods that a framework calls in place of the module, by its package and class.

They are programs of their own: the loss is computed there, around ``forward``. Other methods are
compiled by request, ``compile(module.method)``: most of them, such as ``generate``, are loops of
many calls, in which each call of ``self(...)`` is a program.
"""
_ON_ORIGINAL = {
    nn.Module: ("compile", "_replicate_for_data_parallel"),
    torch.fx.GraphModule: ("recompile",),
}
"""Methods that keep or copy ``self`` or change its class: they get the original as ``self``."""
_SLOTS = ("_orig_mod", "_magpy", "_magpy_methods", *torch_wrappers.MARKS)
"""What is kept of a compiled object itself: all else is in the ``__dict__``, which it shares."""
_HEAP_TYPE = 1 << 9
_class_of = object.__dict__["__class__"]
_NOT_FORWARDED = {
    "__new__", "__init__", "__init_subclass__", "__class__", "__doc__", "__dict__",
    "__getattribute__", "__setattr__", "__delattr__", "__reduce__", "__reduce_ex__",
}  # fmt: skip
"""Attributes of native base classes that act on a compiled object like on any other."""


class CompiledObject(WrapperClass):
    """The methods of compiled objects that are not the original's.

    Attributes:
        _orig_mod: the original, as with ``torch.compile``.
        _magpy: the dispatcher of its calls.
        _magpy_methods: the dispatchers of compiled methods, by name.
        _magpy_original: the class of the original.
    """

    __slots__ = ()
    _orig_mod: Any
    _magpy: Any
    _magpy_methods: dict[str, Any]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._magpy.call(args, kwargs)

    @property
    def __class__(self) -> Any:
        return type(self._orig_mod)

    @__class__.setter
    def __class__(self, cls: type) -> None:
        self._orig_mod.__class__ = original_class(cls)
        follow_class(self)

    def __copy__(self) -> Any:
        return _rebuild(copy.copy(self._orig_mod), settings_of(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = copy.deepcopy(self._orig_mod, memo)
        if id(self) in memo:  # the original refers to `self`
            return memo[id(self)]
        return _rebuild(twin, settings_of(self))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (self._orig_mod, settings_of(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._orig_mod, settings_of(self))


class _WithSlots(CompiledObject):
    """Base of the classes whose originals keep all state in the ``__dict__``: one layout for all,
    so that the class of a compiled object can follow that of the original."""

    __slots__ = (*_SLOTS, "__dict__", "__weakref__")


compiled_callees.register_wrapper(CompiledObject, "_orig_mod")


def is_compiled_object(value: Any) -> bool:
    """True for a compiled module or another compiled object."""
    return is_instance(value, CompiledObject)


def has_compiled_form(target: Any) -> bool:
    """True if a compiled object can stand for a callable: a module, or an instance of a class of
    Python whose state is all in attributes."""
    if is_instance(target, nn.Module):
        return True
    kinds = type | types.FunctionType | types.MethodType
    return not is_instance(target, kinds) and _native_bases(type(target)) == [object]


def compiled_object(original: Any, dispatcher: Any) -> Any:
    """An object that is called by the dispatcher, and is the original in all else."""
    cls = _compiled_class(type(original))
    compiled = _allocate(cls)
    marks = torch_wrappers.marks(compiled, original)
    for name, value in zip(_SLOTS, (original, dispatcher, {}, *marks.values()), strict=True):
        found_in_classes(cls, name).__set__(compiled, value)
    dictionary = found_in_classes(type(original), "__dict__")
    if dictionary is not None:
        found_in_classes(cls, "__dict__").__set__(compiled, dictionary.__get__(original))
    with contextlib.suppress(TypeError):  # instances of its class have no weak references
        dispatcher.on_miss = functools.partial(_native_call, weakref.ref(compiled))
    return compiled


def _native_call(reference: weakref.ref[Any]) -> Callable[..., Any]:
    """The call of a compiled object as its class has it, which ``torch.fx`` replaces: it looks
    ``self`` up among the submodules. The class of the original may have changed."""
    compiled: Any = reference()  # which is being called
    if type(compiled._orig_mod) is not compiled._magpy_original:
        follow_class(compiled)
    call = type.__getattribute__(compiled._magpy_original, "__call__")  # not by its metaclass
    return types.MethodType(call, compiled)


def _allocate(cls: type) -> Any:
    native: Any = _native_bases(cls)[0]
    return native.__new__(cls)


def _native_bases(cls: type) -> list[type]:
    """The bases of a class that are native code, ``object`` last; some of these are heap types."""
    made = types.BuiltinFunctionType
    return [
        base
        for base in cls.__mro__
        if not base.__flags__ & _HEAP_TYPE or type(vars(base).get("__new__")) is made
    ]


def follow_class(compiled: Any) -> None:
    """Give a compiled object the class that belongs to the present class of the original."""
    _class_of.__set__(compiled, _compiled_class(type(compiled._orig_mod)))


def settings_of(compiled: Any) -> dict[str, Any]:
    """The arguments of ``compile`` that a compiled object was created with."""
    names = ("fullgraph", "dynamic", "backend", "mode", "options")
    return {name: getattr(compiled._magpy, name) for name in names}


def _rebuild(original: Any, settings: dict[str, Any]) -> Any:
    return compiled_object(original, make_dispatcher(original, **settings))


def dispatchers_of(compiled: Any) -> list[Any]:
    """The dispatchers of a compiled object: of its calls, and of its compiled methods."""
    return [compiled._magpy, *list(compiled._magpy_methods.values())]


# --- the class of a compiled object ---------------------------------------------------------------

_classes: weakref.WeakValueDictionary[int, type] = weakref.WeakValueDictionary()
"""The class of compiled objects by the id of the original's, which the class keeps alive."""


def _compiled_class(cls: type) -> type:
    """The subclass of ``cls`` whose instances are compiled objects."""
    found = _classes.get(id(cls))
    if found is not None:
        return found
    forwarded = _forwarded_layout(cls)
    base, slots = (CompiledObject, _SLOTS) if forwarded else (_WithSlots, ())
    members: dict[str, Any] = {"__slots__": slots, **class_methods(cls)}
    if hasattr(cls, "__del__"):
        members["__del__"] = _leave_to_original
    if type(cls.__call__) is types.FunctionType:
        members["__call__"] = _with_signature_of(cls.__call__)
    for of, names in _ON_ORIGINAL.items():
        if issubclass(cls, of):
            members.update({name: _on_original(name) for name in names})
    for name in _program_methods(cls):
        members[name] = CompiledMethod(name)
    members.update(forwarded)
    if type(found_in_classes(cls, "__getattribute__")) is types.FunctionType:
        members["__getattribute__"] = _own_attributes_first
    return _classes.setdefault(id(cls), make_wrapper_class(cls, members, base))


def has_callable_instances(cls: type) -> bool:
    """True for a class with a ``__call__`` in Python, such as one of modules."""
    return is_instance(found_in_classes(cls, "__call__"), types.FunctionType)


def _leave_to_original(self: Any) -> None:
    """``__del__``: the original, which may live on, is destroyed once."""


def _with_signature_of(call: types.FunctionType) -> types.FunctionType:
    """``CompiledObject.__call__`` with the names and signature of the original's."""
    own = CompiledObject.__call__
    made = types.FunctionType(own.__code__, own.__globals__)
    functools.update_wrapper(made, call, updated=())
    keep_signature(made, call)
    return made


def keep_signature(made: Any, original: Callable[..., Any]) -> None:
    """Give a function the signature of the one that it wraps.

    ``inspect.signature`` finds it in any case; ``inspect.getfullargspec`` follows no wrappers.
    """
    # Annotations in texts are evaluated on request, where wrappers are followed.
    evaluated = not any(map(_is_text, getattr(original, "__annotations__", {}).values()))
    if evaluated and not hasattr(original, "__wrapped__"):
        with contextlib.suppress(TypeError, ValueError):  # native code may have none
            made.__signature__ = inspect.signature(original)


def _is_text(annotation: Any) -> bool:
    return is_instance(annotation, str)


def _program_methods(cls: type) -> list[str]:
    """The methods of a class that are compiled besides its call."""
    if not issubclass(cls, nn.Module):
        return []
    found = found_in_classes(cls, "forward")
    names = [] if found is found_in_classes(nn.Module, "forward") else ["forward"]
    for base in cls.__mro__:
        framework = base.__module__.partition(".")[0], base.__name__
        names += STEP_METHODS.get(framework, ())
    return names


def _on_original(name: str) -> Callable[..., Any]:
    """A method that is the original's, bound to the original."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._orig_mod, name)(*args, **kwargs)

    method.__name__ = name
    return method


def _own_attributes_first(self: Any, name: str) -> Any:
    """``__getattribute__`` where that of the original's class is code of the program."""
    if name in _OWN_NAMES:
        return object.__getattribute__(self, name)
    return object.__getattribute__(self, "_magpy_original").__getattribute__(self, name)


_OWN_NAMES = {*_SLOTS, "_magpy_original", "__class__"}


def _forwarded_layout(cls: type) -> dict[str, Any]:
    """Access to state that is not in the ``__dict__``: slots, and what native bases keep."""
    members: dict[str, Any] = {}
    native_bases = _native_bases(cls)
    for base in cls.__mro__:
        if base is object:
            continue
        native = base in native_bases
        for name, member in vars(base).items():
            if name in _NOT_FORWARDED or found_in_classes(cls, name) is not member:
                continue
            if type(member) is types.MemberDescriptorType or (
                native and type(member) is types.GetSetDescriptorType
            ):
                members[name] = _forwarded_slot(member)
            elif native and type(member) in _NATIVE_METHODS:
                members[name] = _on_original(name)
    return members


_NATIVE_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def _forwarded_slot(slot: Any) -> property:
    return property(
        lambda self: slot.__get__(self._orig_mod),
        lambda self, value: slot.__set__(self._orig_mod, value),
        lambda self: slot.__delete__(self._orig_mod),
    )


# --- compiled methods -----------------------------------------------------------------------------


class CompiledMethod:
    """A method of compiled objects that is a program: ``forward``, and steps of frameworks.

    A descriptor that gives the original's own function to the class, and a bound method of the same
    signature to an instance.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: tuple[Any, Any] = (None, None)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return getattr(owner._magpy_original, self._name)
        found = found_in_classes(type(instance._orig_mod), self._name)
        if not self._is_compiled(instance, found):
            inherited: Any = super(type(instance), instance)
            return getattr(inherited, self._name)
        function, method = self._made
        if function is not found:
            method = _compiled_function(self._name, found)
            self._made = found, method
        return types.MethodType(method, instance)

    def _is_compiled(self, instance: Any, found: Any) -> bool:
        """False where the class itself has compiled the method, or has a descriptor of its own,
        and for a step under ``fullgraph``, which is asked of the module's calls."""
        if type(found) is not types.FunctionType or hasattr(found, "_magpy_dispatcher"):
            return False
        return self._name == "forward" or not instance._magpy.fullgraph


def _compiled_function(name: str, function: types.FunctionType) -> types.FunctionType:
    """A function with the names, signature and globals of a method, whose calls on compiled objects
    run by records.

    The globals are those in which ``torch.jit`` looks up names.
    """

    def call(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_compiled_object(self):
            return function(self, *args, **kwargs)
        return method_dispatcher(self, name).call(args, kwargs)

    code, cells = _METHOD_CODE, (types.CellType(call),)
    made = types.FunctionType(code, function.__globals__, function.__name__, None, cells)
    functools.update_wrapper(made, function)
    keep_signature(made, function)
    made.__dict__["_magpy_method"] = name
    return made


def _method_template(call: Any) -> Any:
    @untraced
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return call(self, args, kwargs)

    compiled_callees.register_method_wrapper(method, "__wrapped__")
    return method


_METHOD_CODE = _method_template(None).__code__


def method_dispatcher(compiled: Any, name: str) -> Any:
    """The dispatcher of a compiled object's method.

    ``forward`` is recorded on the original. A framework's step keeps the compiled object as
    ``self``: where it runs natively, the calls of ``self(...)`` in it are compiled.
    """
    original, methods = compiled._orig_mod, compiled._magpy_methods
    function = found_in_classes(type(original), name)
    found = methods.get(name)
    if found is None or found.target.__func__ is not function:
        receiver = original if name == "forward" else compiled
        target = types.MethodType(function, receiver)
        found = methods[name] = make_dispatcher(target, **settings_of(compiled))
    return found


def compiled_method_of(value: Any) -> Any:
    """The dispatcher of a compiled object's method, such as ``compiled.forward``; else None."""
    if not is_instance(value, types.MethodType) or not is_compiled_object(value.__self__):
        return None
    function: Any = value.__func__
    if getattr(function, "__code__", None) is not _METHOD_CODE:
        return None
    return method_dispatcher(value.__self__, function._magpy_method)

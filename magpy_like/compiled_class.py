"""Compiled classes: the class itself, whose construction runs by records."""

from __future__ import annotations

import inspect
import types
from typing import Any

from magpy_like.monitor.calls import compiled_callees
from magpy_like.native.instance_checks import is_instance

_HEAP_TYPE = 1 << 9


class CompiledType(type):
    """The metaclass of compiled classes, and of their subclasses, which it leaves as they are.

    A compiled class has no instances of its own: it makes those of the original, and counts them
    as its instances. Attributes that are set on it are set on the original.
    """

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        dispatcher = vars(cls).get("_magpy_dispatcher")
        if dispatcher is None:
            return super().__call__(*args, **kwargs)
        return dispatcher.call(args, kwargs)

    @property
    def _torchdynamo_orig_callable(cls) -> type:
        """See ``torch_wrappers.marks``."""
        original = original_class(cls)
        if original is cls:
            raise AttributeError("_torchdynamo_orig_callable")
        return original

    _torchdynamo_wrapper_id = property(id)

    @property
    def __signature__(cls) -> inspect.Signature:
        original = original_class(cls)
        if original is not cls:
            return inspect.signature(original)
        return inspect.signature(types.MethodType(cls.__init__, cls))  # type: ignore[misc]

    def __instancecheck__(cls, instance: Any) -> bool:
        original = original_class(cls)
        if original is cls:
            return super().__instancecheck__(instance)
        return isinstance(instance, original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        original = original_class(cls)
        if original is cls:
            return super().__subclasscheck__(subclass)
        return issubclass(subclass, original)

    def __setattr__(cls, name: str, value: Any) -> None:
        original = original_class(cls)
        if original is cls:
            super().__setattr__(name, value)
        else:
            setattr(original, name, value)

    def __delattr__(cls, name: str) -> None:
        original = original_class(cls)
        if original is cls:
            super().__delattr__(name)
        else:
            delattr(original, name)


class _Unannounced:
    """Keeps a compiled class from the ``__init_subclass__`` of the program."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if original_class(cls) is cls:
            super().__init_subclass__(**kwargs)


def original_class(cls: type) -> type:
    """The class that a compiled class was made from; any other class itself."""
    found: type = vars(cls).get("_magpy_original", cls)
    return found


compiled_callees.register_class_wrapper(CompiledType, original_class)


def is_class_of_python(value: Any) -> bool:
    """True for a class that can have subclasses with other metaclasses: not for a native one."""
    return is_instance(value, type) and bool(value.__flags__ & _HEAP_TYPE)


def compiled_class(original: type, dispatcher: Any) -> type:
    """A subclass of a class, to use in its place, that is constructed by the dispatcher."""
    meta = type(original)
    kind = type(meta.__name__, (CompiledType,) if meta is type else (CompiledType, meta), {})
    members = {
        "__slots__": (),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_magpy_original": original,
        "_magpy_dispatcher": dispatcher,
    }
    return type.__new__(kind, original.__name__, (_Unannounced, original), members)

"""Classes that this package makes in place of a class of the program.

A wrapper class is **no place of state**: attributes set on it, also by an inherited class method,
are set on the original. It has no instances and no subclasses of its own for the program: its
checks are those of the original, a call of it makes an instance of the original, and a class that a
program derives from it is derived from the original.
"""

from __future__ import annotations

import copy
import copyreg
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from magpy_like.monitor.calls import compiled_callees
from magpy_like.native.instance_checks import is_instance

_mro_of = type.__dict__["__mro__"].__get__
_members_of = type.__dict__["__dict__"].__get__


class WrapperType(type):
    """The metaclass of wrapper classes, before that of the original."""

    def __new__(
        metacls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> Any:
        """A class that a program derives from a wrapper class is a class of the program."""
        bases = tuple(map(original_class, bases))
        return _metaclass_for(bases)(name, bases, namespace, **kwargs)

    @classmethod
    def __prepare__(  # type: ignore[override]
        metacls, name: str, bases: tuple[type, ...], /, **kwargs: Any
    ) -> Mapping[str, object]:
        bases = tuple(map(original_class, bases))
        return _metaclass_for(bases).__prepare__(name, bases, **kwargs)

    def __init_subclass__(metacls, **kwargs: Any) -> None:
        """A metaclass of the program hears of no metaclass made from it."""

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        return original_class(cls)(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return _answer_of_original(isinstance, instance, cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return _answer_of_original(issubclass, subclass, cls)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(type.__getattribute__(cls, "_magpy_original"), name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(type.__getattribute__(cls, "_magpy_original"), name)

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(original_class(cls))

    @property
    def __annotations__(cls) -> Any:  # type: ignore[override]
        """Python would create a dictionary in the wrapper class."""
        return original_class(cls).__annotations__


class WrapperClass:
    """A base of all wrapper classes: nothing of the program runs as they are made."""

    __slots__ = ()

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        original: Any = original_class(cls)
        return original.__new__(original, *args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """``__init_subclass__`` of the program hears of no wrapper class."""


def make_wrapper_class(
    original: type, members: dict[str, Any], base: type = WrapperClass, kind: type = WrapperType
) -> type:
    """A wrapper class with members of its own; ``kind`` is a subclass of :class:`WrapperType`."""
    known = {
        "__slots__": (),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_magpy_original": original,
    }
    metaclass: Any = _wrapper_metaclass(kind, type(original))
    return type.__new__(metaclass, original.__name__, (base, original), known | members)


def original_class(cls: Any) -> Any:
    """The class that a wrapper class stands for; any other class itself."""
    if not is_instance(cls, WrapperType):
        return cls
    return type.__getattribute__(cls, "_magpy_original")  # not by the program's metaclass


def _pickled(cls: Any) -> tuple[Any, ...]:
    """A state that holds the class of a compiled object is pickled with the original; ``copy`` of
    a class is the class, wherever it is loaded."""
    return copy.copy, (original_class(cls),)


compiled_callees.register_class_wrapper(WrapperType, original_class)
copyreg.pickle(WrapperType, _pickled)


def found_in_classes(cls: type, name: str) -> Any:
    """What the class and its bases define under a name, unbound; None if nothing.

    No code of a metaclass runs, which would see that something is looked up.
    """
    members = map(_members_of, _mro_of(cls))
    return next((found[name] for found in members if name in found), None)


# --- metaclasses ----------------------------------------------------------------------------------

_metaclasses: weakref.WeakValueDictionary[tuple[int, int], type] = weakref.WeakValueDictionary()
"""By the ids of the bases, which the metaclass keeps alive."""


def _wrapper_metaclass(kind: type, meta: type) -> type:
    """``kind`` with the methods of the original's metaclass."""
    if meta is type:
        return kind
    found = _metaclasses.get((id(kind), id(meta)))
    if found is None:
        members = {"__module__": meta.__module__, "__qualname__": meta.__qualname__}
        found = type.__new__(type(meta), meta.__name__, (kind, meta), members)
        found = _metaclasses.setdefault((id(kind), id(meta)), found)
    return found


def _metaclass_for(bases: tuple[type, ...]) -> Any:
    """The metaclass that Python chooses for a class with these bases."""
    chosen: type = type
    for base in bases:
        if is_instance(base, type) and issubclass(type(base), chosen):
            chosen = type(base)
    return chosen


# --- checks ---------------------------------------------------------------------------------------


class _PendingChecks(threading.local):
    """The checks that this thread has passed on to an original and that are not answered yet."""

    def __init__(self) -> None:
        self.checks: set[tuple[Any, int, int]] = set()


_pending = _PendingChecks()


def _answer_of_original(check: Callable[..., bool], value: Any, cls: type) -> bool:
    """The original's answer to a check.

    An original may ask all its subclasses, as an abstract base class does, and so this one again,
    which adds nothing to what the original knows.
    """
    original = original_class(cls)
    pending = check, id(original), id(value)
    if pending in _pending.checks:
        return False
    try:
        _pending.checks.add(pending)
        return check(value, original)
    finally:
        _pending.checks.discard(pending)


# --- class methods --------------------------------------------------------------------------------


class _OfOriginal:
    """A descriptor in place of one that receives the class, such as a class method: it receives
    the original."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        original = original_class(owner if instance is None else type(instance))
        found = found_in_classes(original, self._name)  # the program may have replaced it
        if found is None:
            raise AttributeError(self._name)
        bind = found_in_classes(type(found), "__get__")
        return found if bind is None else bind(found, instance, original)


def class_methods(original: type) -> dict[str, Any]:
    """Descriptors for the class methods of an original, and what the program has of that kind."""
    names = {name for base in _mro_of(original) for name in _members_of(base)}
    names -= {"__init_subclass__"}
    return {name: _OfOriginal(name) for name in names if _receives_class(original, name)}


def _receives_class(original: type, name: str) -> bool:
    found = found_in_classes(original, name)
    if is_instance(found, classmethod):
        return True
    kind = type(found)
    if any(found_in_classes(kind, setter) for setter in ("__set__", "__delete__")):
        return False
    return is_instance(found_in_classes(kind, "__get__"), types.FunctionType)

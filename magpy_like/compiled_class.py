"""Compiled classes: the class itself, whose construction runs by records."""

from __future__ import annotations

from typing import Any

from magpy_like.monitor.calls import compiled_callees
from magpy_like.native.instance_checks import is_instance
from magpy_like.wrapper_classes import WrapperType, make_wrapper_class, original_class

_HEAP_TYPE = 1 << 9


class CompiledType(WrapperType):
    """The metaclass of compiled classes."""

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        return cls._magpy_dispatcher.call(args, kwargs)  # type: ignore[attr-defined]

    @property
    def _torchdynamo_orig_callable(cls) -> type:
        """See ``torch_wrappers.marks``."""
        original: type = original_class(cls)
        return original

    _torchdynamo_wrapper_id = property(id)


compiled_callees.register_class_wrapper(CompiledType, original_class)


def is_class_of_python(value: Any) -> bool:
    """True for a class that can have subclasses with other metaclasses: not for a native one."""
    return is_instance(value, type) and bool(value.__flags__ & _HEAP_TYPE)


def compiled_class(original: type, dispatcher: Any) -> type:
    """A subclass of a class, to use in its place, that is constructed by the dispatcher."""
    return make_wrapper_class(original, {"_magpy_dispatcher": dispatcher}, kind=CompiledType)

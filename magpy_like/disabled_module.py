"""Disabled modules and classes: what ``magpy_like.disable`` returns for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from magpy_like.monitor.disabled_functions import mark_disabled
from magpy_like.wrapper_classes import class_methods, make_wrapper_class

F = TypeVar("F", bound=Callable[..., Any])


def disabled_function(function: F) -> F:
    """A wrapper of a function whose calls split a program."""

    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    mark_disabled(disabled)
    return disabled  # type: ignore[return-value]


def disable_instances(cls: type) -> type:
    """The class itself, whose instances are disabled from now on: a subclass in its place would
    not be the class that its methods name in ``super``."""
    cls.__call__ = _disabled_call(cls, cls.__call__)  # type: ignore[method-assign]
    return cls


def _disabled_call(cls: type, call: Callable[..., Any]) -> Callable[..., Any]:
    """A disabled ``__call__``, which reports name by its class."""
    disabled = disabled_function(call)
    disabled.__module__, disabled.__qualname__ = cls.__module__, cls.__qualname__
    return disabled


def disabled_module(module: nn.Module) -> nn.Module:
    """A module that shares the state of another, which its calls run. The other stays as it is."""
    cls = type(module)

    def call(_: Any, *args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    members = {
        **class_methods(cls),
        "__class__": property(lambda _: cls),
        "__call__": _disabled_call(cls, functools.update_wrapper(call, cls.__call__, updated=())),
        "__reduce_ex__": lambda _, protocol: (disabled_module, (module,)),
        "_magpy_disabled": module,
    }
    twin = nn.Module.__new__(make_wrapper_class(cls, members))
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


def original_of_disabled(value: Any) -> Any:
    """The module that a disabled one runs; anything else itself."""
    return vars(type(value)).get("_magpy_disabled", value)

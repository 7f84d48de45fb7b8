"""Kinds of arguments of native calls, found without running any method of the arguments."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

from magpy_like.annotation import lookup
from magpy_like.monitor.objects.containers import CONTAINERS, SCALARS, elements, overrides_iteration
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import answers_in_python, is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_identity, is_plain


def is_followed(function: Any) -> bool:
    """True if a call continues in Python code, which reads the arguments under the monitor."""
    if is_instance(function, types.MethodType):
        function = function.__func__
    if is_instance(function, torch.nn.Module):
        function = lookup_in_type(type(function), "__call__")
    if is_instance(function, types.FunctionType | type):
        return lookup(function) is None
    return False


def describe(function: Any) -> str:
    """The name of an operation for messages, with its module unless it is a built-in; that of the
    class if the operation looks up its attributes in Python."""
    if answers_in_python(function):
        function = type(function)
    module = getattr(function, "__module__", None)
    if module is None:
        module = getattr(getattr(function, "__objclass__", None), "__module__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name if module in (None, "builtins") else f"{module}.{name}"


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested built-in containers."""
    if is_instance(value, torch.Tensor):
        yield value
    elif is_instance(value, CONTAINERS):
        for item in elements(value):
            if not is_plain(item):
                yield from tensors_in(item)


def holds_tensor(value: Any) -> bool:
    """True for a tensor, and for a container with one at any depth."""
    if is_instance(value, torch.Tensor):
        return True
    if not is_instance(value, CONTAINERS):
        return False
    return any(holds_tensor(item) for item in elements(value) if not is_plain(item))


def uses_special_methods(operation: Any, args: tuple[Any, ...]) -> bool:
    """True if special methods of an operand in Python implement the operator.

    The monitor follows them and records the operators that they apply to tensors.
    """
    of_python = getattr(operation, "__module__", None) in ("builtins", "_operator")
    return of_python and any(is_python_instance(value) for value in args)


def is_python_instance(value: Any) -> bool:
    """True for an instance of a class in Python, and for a container with one."""
    if is_instance(value, torch.Tensor) or is_plain(value) or is_identity(value):
        return False
    if is_instance(value, CONTAINERS):
        return overrides_iteration(value) or any(
            is_python_instance(item) for item in elements(value)
        )
    return bool(type(value).__flags__ & HEAP_TYPE) and not is_instance(value, SCALARS)


def has_conversion_methods(value: Any) -> bool:
    """True if a tensor operator would convert a value, or an element, by its Python methods.

    The monitor does not see these calls.
    """
    if is_instance(value, CONTAINERS):
        return overrides_iteration(value) or any(map(has_conversion_methods, elements(value)))
    if is_instance(value, slice):
        return any(map(has_conversion_methods, (value.start, value.stop, value.step)))
    return is_python_instance(value) and any(hasattr(type(value), name) for name in _CONVERSIONS)


_CONVERSIONS = (
    "__index__", "__int__", "__float__", "__complex__", "__array__", "__torch_function__",
)  # fmt: skip

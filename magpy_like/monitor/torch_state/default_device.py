"""The default device: a torch function mode that passes a device to tensor constructors.

A record is made under one default device, which its guard checks. The operator graph names the
device of every tensor that it creates, so backends and graphs run without the mode.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from magpy_like.torch_compat.dispatch import (
    DeviceContext,
    device_constructors,
    function_mode_at,
    function_mode_count,
    has_torch_function,
    has_torch_function_unary,
    has_torch_function_variadic,
    pop_function_mode,
    push_function_mode,
)

CONSTRUCTORS = frozenset(device_constructors())
"""Functions that create tensors on the default device unless they receive another."""
SWITCHES = frozenset({torch.device.__enter__, torch.device.__exit__})
"""The methods that ``with torch.device(...)`` calls."""
OVERRIDE_QUERIES = frozenset(
    {
        has_torch_function,
        has_torch_function_unary,
        has_torch_function_variadic,
    }
)
"""Queries by torch's Python functions for overrides of themselves: any mode is one."""
MODE_CODE = DeviceContext.__torch_function__.__code__
"""The code that runs between the program and its operators under a default device."""


def default_device() -> torch.device | None:
    """The default device of this thread, or None."""
    count = function_mode_count()
    device: torch.device | None = None
    if count:
        device = getattr(function_mode_at(count - 1), "device", None)
    return device


def modes() -> list[Any]:
    """The torch function modes of this thread, outermost first."""
    count = function_mode_count()
    return [function_mode_at(i) for i in range(count)]


def default_devices() -> list[torch.device]:
    """The default devices, innermost first."""
    return [mode.device for mode in reversed(modes())]


def are_all_modes() -> bool:
    """True if all torch function modes of this thread are default devices."""
    return all(type(mode) is DeviceContext for mode in modes())


@contextlib.contextmanager
def held(stack: list[Any]) -> Iterator[None]:
    """A context with these modes in place of the current ones."""
    before = modes()
    _replace(before, stack)
    try:
        yield
    finally:
        _replace(stack, before)


def _replace(before: list[Any], after: list[Any]) -> None:
    for _ in before:
        pop_function_mode()
    for mode in after:
        push_function_mode(mode)


def mode_changes(before: list[Any], after: list[Any]) -> tuple[int, list[torch.device]]:
    """The changes from the modes ``before`` to ``after``.

    That is the number of ``with torch.device(...)`` to exit, and the devices to enter then.
    """
    same = 0
    while same < min(len(before), len(after)) and before[same] is after[same]:
        same += 1
    return len(before) - same, [mode.device for mode in after[same:]]


def switch(exits: int, entered: list[torch.device]) -> None:
    """Exit and enter default devices, as ``mode_changes`` states."""
    for _ in range(exits):
        pop_function_mode()
    for device in entered:
        push_function_mode(DeviceContext(device))


def without_default_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called while no default device is set."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with held([]):
            return function(*args, **kwargs)

    return call


def with_device(operation: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call, with the default device made explicit."""
    if operation not in CONSTRUCTORS or kwargs.get("device") is not None:
        return kwargs
    device = default_device()
    return kwargs if device is None else {**kwargs, "device": device}

"""The default device: a mode on torch's stack that gives constructors of tensors their device.

A record is made under one default device, on which its guard insists. The operator graph names the
device of every tensor that it makes, so that backends and graphs run without the mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils._device import DeviceContext, _device_constructors

CONSTRUCTORS = frozenset(_device_constructors())
"""Functions that make tensors on the default device unless they are told another."""
SWITCHES = frozenset({torch.device.__enter__, torch.device.__exit__})
"""What ``with torch.device(...)`` calls."""
ASKS_FOR_OVERRIDES = frozenset(
    {
        torch._C._has_torch_function,
        torch._C._has_torch_function_unary,
        torch._C._has_torch_function_variadic,
    }
)
"""With these torch's Python functions ask whether anybody wants to see them: any mode does."""
MODE_CODE = DeviceContext.__torch_function__.__code__
"""Runs between the program and the operators while there is a default device."""


def default_device() -> torch.device | None:
    """The default device that was set for this thread, or None."""
    count = torch._C._len_torch_function_stack()
    device: torch.device | None = None
    if count:
        device = getattr(torch._C._get_function_stack_at(count - 1), "device", None)
    return device


def are_all_modes() -> bool:
    """Whether the torch function modes of this thread are default devices, each of them."""
    count = torch._C._len_torch_function_stack()
    return all(type(torch._C._get_function_stack_at(i)) is DeviceContext for i in range(count))


def without_default_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called while no default device is set."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        try:
            return function(*args, **kwargs)
        finally:
            for mode in reversed(modes):
                _push_mode(mode)

    return call


def with_device(operation: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call, with the device that it gets by default."""
    if operation not in CONSTRUCTORS or kwargs.get("device") is not None:
        return kwargs
    device = default_device()
    return kwargs if device is None else {**kwargs, "device": device}

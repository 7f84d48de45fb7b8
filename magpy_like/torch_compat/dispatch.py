"""Modes and keys that decide which code runs for an operator, all of the current thread."""

from __future__ import annotations

import torch
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

__all__ = [
    "AutoDispatchBelowAutograd",
    "DeviceContext",
    "DisableAutocast",
    "DisableTorchFunctionSubclass",
    "DispatchKey",
    "ExcludeDispatchKey",
    "TorchDispatchMode",
    "device_constructors",
    "disable_current_modes",
    "dispatch_mode_count",
    "function_mode_at",
    "function_mode_count",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
    "is_any_autocast_enabled",
    "pop_function_mode",
    "push_function_mode",
    "tracing_state",
]

# Torch function modes. `push_function_mode` and `pop_function_mode` change the stack without
# entering or leaving the mode; `DeviceContext` is the mode of `torch.set_default_device`, and
# `device_constructors` returns the functions to which it passes its device.
function_mode_count = torch._C._len_torch_function_stack
function_mode_at = torch._C._get_function_stack_at
"""``(index)``: a mode of the stack; 0 is the outermost."""
has_torch_function = torch._C._has_torch_function
"""Query of torch's Python functions: does an argument or a mode override them?"""
has_torch_function_unary = torch._C._has_torch_function_unary
has_torch_function_variadic = torch._C._has_torch_function_variadic
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
"""Context in which subclasses of tensors do not see the operators on them."""

# Dispatch modes. `TorchDispatchMode` is the base class of such modes; under
# `disable_current_modes`, none is active.
dispatch_mode_count = torch._C._len_torch_dispatch_stack

# Keys of the dispatcher.
DispatchKey = torch._C.DispatchKey
AutoDispatchBelowAutograd = torch._C._AutoDispatchBelowAutograd
"""Context in which operators skip autograd."""
ExcludeDispatchKey = torch._C._SetExcludeDispatchKeyGuard
"""``(key, excluded)``: context that excludes a key, or includes it again."""

# Autocast and `torch.jit.trace`.
DisableAutocast = torch._C._DisableAutocast
"""Context without autocast, for all devices."""
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
tracing_state = torch._C._get_tracing_state
"""State of a running ``torch.jit.trace``, or None."""

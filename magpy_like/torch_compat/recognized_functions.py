"""Python functions of torch that the monitor recognizes when a program calls them."""

from __future__ import annotations

import torch
from torch.nn.modules import module as _module

__all__ = ["MODULE_CALLS", "global_forward_hooks", "is_compiling_of_utils"]

MODULE_CALLS = (torch.nn.Module._wrapped_call_impl, torch.nn.Module._call_impl)
"""Functions through which ``nn.Module.__call__`` passes its arguments on, in the order in which
they call each other; the last one calls ``forward``."""
global_forward_hooks = (_module._global_forward_hooks, _module._global_forward_pre_hooks)
"""The hooks on calls of all modules, by their numbers."""
is_compiling_of_utils = torch._utils.is_compiling
"""Older form of ``torch.compiler.is_compiling``, which torch's optimizers call."""

"""Python functions of torch that the monitor recognizes when a program calls them."""

from __future__ import annotations

import torch

__all__ = ["MODULE_CALLS", "is_compiling_of_utils"]

MODULE_CALLS = (torch.nn.Module._wrapped_call_impl, torch.nn.Module._call_impl)
"""Functions through which ``nn.Module.__call__`` passes its arguments on, in the order in which
they call each other; the last one calls ``forward``."""
is_compiling_of_utils = torch._utils.is_compiling
"""Older form of ``torch.compiler.is_compiling``, which torch's optimizers call."""

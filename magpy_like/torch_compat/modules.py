"""Functions through which ``nn.Module.__call__`` passes arguments on."""

from __future__ import annotations

import torch

__all__ = ["MODULE_CALLS"]

MODULE_CALLS = (torch.nn.Module._wrapped_call_impl, torch.nn.Module._call_impl)
"""In the order in which they call each other; the last one calls ``forward``."""

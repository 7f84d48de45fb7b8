"""Transforms of ``torch.func`` and levels of forward-mode AD."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

__all__ = [
    "VMAP_MODULE",
    "are_transforms_active",
    "get_unwrapped",
    "grad_and_value_impl",
    "grad_impl",
    "innermost_transform",
    "is_forward_ad_active",
    "is_under_transform",
    "is_legacy_batched_tensor",
    "is_wrapped_tensor",
    "vmap_impl",
]

are_transforms_active = torch._C._are_functorch_transforms_active
"""True inside ``vmap``, ``grad``, ``jvp`` and the like."""
innermost_transform = torch._C._functorch.peek_interpreter_stack
"""Interpreter of the innermost transform, or None; unlike ``are_transforms_active``, it also sees
the transform under which a backward pass runs."""
is_wrapped_tensor = torch._C._functorch.is_functorch_wrapped_tensor
get_unwrapped = torch._C._functorch.get_unwrapped
"""The tensor inside a transform's wrapper, one level deep."""
is_legacy_batched_tensor = torch._C._functorch.is_legacy_batchedtensor
"""True for the gradients that ``torch.autograd.grad(is_grads_batched=True)`` passes."""

vmap_impl = torch._functorch.vmap.vmap_impl
"""Python function that runs the program's function under ``vmap``."""
grad_impl = torch._functorch.eager_transforms.grad_impl
grad_and_value_impl = torch._functorch.eager_transforms.grad_and_value_impl
VMAP_MODULE = "torch._functorch.vmap"
"""Name of the module whose frames wrap and unwrap the tensors of ``vmap``."""


def is_forward_ad_active() -> bool:
    """True inside ``forward_ad.dual_level()``. The level is a global variable of torch's module."""
    return forward_ad._current_level >= 0


def is_under_transform() -> bool:
    """True inside a transform or a level of forward-mode AD: tensors are wrapped or have tangents,
    which kernels do not see."""
    return forward_ad._current_level >= 0 or are_transforms_active()

"""Detection of others that trace or transform the program's operators."""

from __future__ import annotations

import torch

from magpy_like.active_run import is_monitoring
from magpy_like.monitor.torch_state import default_device
from magpy_like.native import operators_may_be_observed
from magpy_like.torch_compat.autograd import saved_tensor_hooks
from magpy_like.torch_compat.dispatch import dispatch_mode_count, function_mode_count, tracing_state
from magpy_like.torch_compat.functorch import is_forward_ad_active, is_under_transform


def is_traced() -> bool:
    """True if somebody else sees the program's operators: then it runs as it is written.

    Hooks on saved tensors receive those of each operator; `torch.utils.checkpoint` counts them,
    and raises from one of them once it has seen enough. At an open level of forward-mode AD each
    operator creates tangents; under `vmap`, `grad` and the like, tensors are wrappers.
    """
    if is_monitoring() or is_forward_ad_active():
        return True
    # Rarely true, and a fifth of the cost of all questions below.
    return operators_may_be_observed() and _is_observed()


def _is_observed() -> bool:
    return (
        (function_mode_count() > 0 and not default_device.are_all_modes())
        or dispatch_mode_count() > 0
        or tracing_state() is not None
        or (torch.is_grad_enabled() and saved_tensor_hooks(True) is not None)
        or is_under_transform()
    )

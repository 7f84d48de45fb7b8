"""Detection of others that trace or transform the program's operators, or profile it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from magpy_like.active_run import is_monitoring
from magpy_like.monitor.torch_state import default_device
from magpy_like.native import eager_is_forced, is_unusual
from magpy_like.torch_compat.autograd import saved_tensor_hooks
from magpy_like.torch_compat.dispatch import dispatch_mode_count, function_mode_count, tracing_state
from magpy_like.torch_compat.functorch import is_forward_ad_active, is_under_transform


def is_watched() -> bool:
    """True if :func:`is_traced` may be true, or a profiler records this thread."""
    # Each call asks. One native question for all of them is a fifth of the cost of each by itself.
    return is_monitoring() or is_forward_ad_active() or is_unusual()


def is_traced() -> bool:
    """True if somebody else sees the program's operators: then it runs as it is written.

    Hooks on saved tensors receive those of each operator; `torch.utils.checkpoint` counts them,
    and raises from one of them once it has seen enough. At an open level of forward-mode AD each
    operator creates tangents; under `vmap`, `grad` and the like, tensors are wrappers.
    """
    if is_monitoring() or is_forward_ad_active():
        return True
    return is_unusual() and (_is_observed() or eager_is_forced())


def describe_observer() -> tuple[str, str] | None:
    """Who sees the program's operators, and how to do without; None if nobody does."""
    found = next((observer for observer in _OBSERVERS if observer.is_there()), None)
    return None if found is None else (f"{found.why}, so it runs as it is written", found.remedy)


def _is_observed() -> bool:
    return any(observer.is_there() for observer in _OBSERVERS)


class _Observer(NamedTuple):
    is_there: Callable[[], bool]
    why: str
    remedy: str = "call it outside, or compile a function that contains both"


_OBSERVERS = (
    _Observer(  # by means of modes
        torch.compiler.is_exporting, "torch.export traces each operator", "export the original"
    ),
    _Observer(
        lambda: function_mode_count() > 0 and not default_device.are_all_modes(),
        "a mode with a __torch_function__ sees each operator",
    ),
    _Observer(
        lambda: dispatch_mode_count() > 0, "a mode with a __torch_dispatch__ sees each operator"
    ),
    _Observer(lambda: tracing_state() is not None, "torch.jit.trace records each operator"),
    _Observer(
        lambda: torch.is_grad_enabled() and saved_tensor_hooks(True) is not None,
        "hooks on saved tensors, such as those of torch.utils.checkpoint, receive the tensors of "
        "each operator",
    ),
    _Observer(is_forward_ad_active, "forward-mode AD differentiates each operator"),
    _Observer(is_under_transform, "a transform of torch.func sees each operator"),
)
"""Who may see operators, and the words for it. The first that is there is reported."""

"""The current GPU and its current stream, for launches of kernels without a device guard.

A build of torch without CUDA has neither function; nothing there calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from magpy_like.torch_compat.float32_precision import float32_precisions

__all__ = [
    "clear_library_workspaces",
    "current_device",
    "current_raw_stream",
    "end_allocate_to_pool",
    "library_settings",
    "release_pool",
]

current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None)  # type: ignore[assignment]
"""Number of this thread's current GPU, without initialising CUDA."""
current_raw_stream: Callable[[int], int] = getattr(  # type: ignore[assignment]
    torch._C, "_cuda_getCurrentRawStream", None
)
"""``(gpu)``: address of a GPU's current stream; 0 is the default stream."""

end_allocate_to_pool: Callable[[int, Any], None] = getattr(  # type: ignore[assignment]
    torch._C, "_cuda_endAllocateToPool", None
)
"""``(gpu, pool)``: allocations of a capture no longer take a private pool's memory."""
clear_library_workspaces: Callable[[], None] = getattr(  # type: ignore[assignment]
    torch._C, "_cuda_clearCublasWorkspaces", None
)
"""Free cuBLAS's workspaces of all streams; the next product on a stream allocates one."""
release_pool: Callable[[int, Any], None] = getattr(  # type: ignore[assignment]
    torch._C, "_cuda_releasePool", None
)
"""``(gpu, pool)``: one user of a private pool fewer."""

_SETTINGS = tuple(
    getattr(torch._C, name)
    for name in (
        "_get_cudnn_benchmark", "_get_cudnn_deterministic", "_get_cudnn_enabled",
        "_get_deterministic_algorithms",
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
    )
)  # fmt: skip


def library_settings() -> tuple[Any, ...]:
    """Torch's settings on which the kernels of its operators on a GPU depend."""
    return (float32_precisions(), *[get() for get in _SETTINGS])

"""The current GPU and its current stream, for launches of kernels without a device guard.

A build of torch without CUDA has neither function; nothing there calls them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["current_device", "current_raw_stream"]

current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None)  # type: ignore[assignment]
"""Number of this thread's current GPU, without initialising CUDA."""
current_raw_stream: Callable[[int], int] = getattr(  # type: ignore[assignment]
    torch._C, "_cuda_getCurrentRawStream", None
)
"""``(gpu)``: address of a GPU's current stream; 0 is the default stream."""

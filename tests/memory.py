"""Memory of a call according to the allocator: its peak, and leaks afterwards."""

import gc
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], Any], device: torch.device | str = "cpu") -> int:
    """The peak tensor memory of `call` in bytes, in excess of the memory held before it."""
    device = torch.device(device)
    if device.type == "cuda":
        gc.collect()  # garbage freed during the call would hide an equal amount of its memory
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    held = peak = 0
    for change in _allocations(call):
        held += change
        peak = max(peak, held)
    return peak


def leaked_bytes(call: Callable[[], Any]) -> int:
    """CPU tensor memory in bytes that `call` allocates and does not free."""

    def call_and_collect() -> None:
        call()
        gc.collect()

    return sum(_allocations(call_and_collect))


def _allocations(call: Callable[[], Any]) -> list[int]:
    """Bytes allocated (positive) and freed (negative) by the CPU allocator, in order.

    Includes allocations inside of operators. The result of `call` is freed while the profiler is
    still active.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return [e.nbytes() for e in events if e.device_type() == torch.autograd.DeviceType.CPU]


def count_objects() -> Counter[str]:
    """The numbers of living tensors, modules and frames."""
    gc.collect()
    counts: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, torch.Tensor):
            counts["tensors"] += 1
        elif issubclass(kind, torch.nn.Module):
            counts["modules"] += 1
        elif kind is types.FrameType:
            counts["frames"] += 1
    return counts

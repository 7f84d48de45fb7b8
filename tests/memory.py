"""How much memory a call takes, as the allocator saw it, and what is left behind afterwards."""

import gc
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], Any], device: torch.device | str = "cpu") -> int:
    """The most bytes of tensor memory that `call` held at one time, beyond those held before it."""
    device = torch.device(device)
    if device.type == "cuda":
        gc.collect()  # garbage given back during the call would hide as much of what it takes
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


def bytes_left(call: Callable[[], Any]) -> int:
    """CPU tensor memory allocated during `call` and not given back when it has returned."""

    def call_and_collect() -> None:
        call()
        gc.collect()

    return sum(_allocations(call_and_collect))


def _allocations(call: Callable[[], Any]) -> list[int]:
    """Bytes taken (positive) and given back (negative) by the CPU allocator, in order.

    Every allocation is seen, those inside of operators included. The result of `call` is dropped
    while the allocator is still watched.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return [e.nbytes() for e in events if e.device_type() == torch.autograd.DeviceType.CPU]


def census() -> Counter[str]:
    """How many tensors, modules and frames Python knows of."""
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

"""Paired timing: all candidates take turns in one process, and only ratios are compared.

A machine's speed drifts by more than the differences of interest. Interleaving exposes every
candidate to the same drift, and medians ignore single slow runs.
"""

import dataclasses
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magpy_like.torch_compat import pytree


@dataclasses.dataclass(frozen=True)
class PairedTiming:
    """Seconds per call of each candidate, one sample per round; n-th samples belong together."""

    samples: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Returns the median seconds per call."""
        return statistics.median(self.samples[name])

    def ratio(self, name: str, base: str) -> float:
        """Returns the median time of `name` divided by that of `base`; below 1 is faster."""
        return self.median(name) / self.median(base)

    def spread(self, name: str) -> float:
        """Returns the interquartile range divided by the median."""
        low, middle, high = statistics.quantiles(self.samples[name], n=4)
        return (high - low) / middle


def measure(
    candidates: dict[str, Callable[[], Any]],
    *,
    rounds: int = 21,
    sample_seconds: float = 0.01,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> PairedTiming:
    """Times every candidate once per round, in a new random order each round.

    Args:
        candidates: name and callable without arguments.
        rounds: samples per candidate.
        sample_seconds: minimal duration of a sample. A faster candidate is called repeatedly, and
            the sample is the mean of these calls.
        warmup: calls before the first sample, for compilation and caches.
        clock: returns seconds. `time.process_time` excludes other processes; it adds up the time of
            all threads and therefore suits a single thread.
    """
    repeats = {
        name: _choose_repeats(call, sample_seconds, warmup) for name, call in candidates.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            samples[name].append(time_call(candidates[name], repeats[name], clock))
    return PairedTiming(samples)


def measure_once(
    makers: dict[str, Callable[[], Callable[[], Any]]], *, rounds: int = 5
) -> PairedTiming:
    """Times a call that cannot be repeated, such as the first call of a compiled function.

    Args:
        makers: name and a function that prepares everything anew, untimed, and returns the call.
        rounds: samples per candidate.
    """
    samples: dict[str, list[float]] = {name: [] for name in makers}
    order = list(makers)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            call = makers[name]()
            samples[name].append(time_call(call, 1))
            del call
    return PairedTiming(samples)


def time_call(
    call: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Returns the mean seconds per call of `repeats` calls, including the work of the device."""
    gc.collect()
    gc.disable()
    try:
        _synchronize()
        start = clock()
        for _ in range(repeats):
            call()
        _synchronize()
        return (clock() - start) / repeats
    finally:
        gc.enable()


def differs(actual: Any, expected: Any, *, equal_nan: bool = False) -> bool:
    """True if a tensor of a model's results differs from eager mode's."""
    pairs = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
    return not all(
        torch.allclose(a, e, rtol=1e-2, atol=1e-3, equal_nan=equal_nan)
        for a, e in pairs
        if isinstance(e, torch.Tensor)
    )


def geometric_mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values)


def format_seconds(value: float) -> str:
    """Returns a duration with three digits and a unit: `1.24 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns text columns, the first one aligned left and all others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *others = row
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *map(line, rows)])


def describe_machine() -> str:
    """Returns torch's version, the device and the number of threads."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads"


def _choose_repeats(call: Callable[[], Any], sample_seconds: float, warmup: int) -> int:
    for _ in range(warmup):
        call()
    return max(1, round(sample_seconds / max(time_call(call, 3), 1e-9)))


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()

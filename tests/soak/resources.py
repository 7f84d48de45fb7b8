"""Resources of this process, and whether they grow."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

import torch


@dataclass(frozen=True)
class Resources:
    """One sample; memory and disk in MiB."""

    resident: float
    objects: int
    descriptors: int
    threads: int
    disk: float
    gpu_allocated: float
    gpu_reserved: float

    @classmethod
    def now(cls, cache: Path, device: str) -> Resources:
        """The resources after a garbage collection; ``cache`` is the folder of the disk cache."""
        gc.collect()
        on_gpu = device == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            len(gc.get_objects()),
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            sum(f.stat().st_size for f in cache.rglob("*") if f.is_file()) / 2**20,
            torch.cuda.memory_allocated() / 2**20 if on_gpu else 0.0,
            torch.cuda.memory_reserved() / 2**20 if on_gpu else 0.0,
        )


TOLERATED = Resources(0.05, 0.02, 2, 2, 0.05, 0.05, 0.10)  # type: ignore[arg-type]
"""Growth that does not count: a share, but a number of descriptors and threads."""


def growing(samples: Sequence[Resources], disk_bound: float = 0.0) -> list[str]:
    """Resources whose least and median sample of the last third exceed those of the middle third: a
    leak is in every sample, and the rest depends on the models that are alive in it.

    The first third is the warm-up: caches of bounded size fill. ``disk_bound`` is the size in MiB
    up to which the disk cache may grow at any time: it is emptied in steps.
    """
    third = len(samples) // 3
    found = []
    for k, name in enumerate(Resources.__dataclass_fields__):
        middle = [astuple(sample)[k] for sample in samples[third : 2 * third]]
        last = [astuple(sample)[k] for sample in samples[-third:]]
        limit = astuple(TOLERATED)[k]

        def exceeds(before: float, after: float, name: str = name, limit: float = limit) -> bool:
            before = max(before, disk_bound) if name == "disk" else before
            allowed = limit if name in ("descriptors", "threads") else limit * max(before, 1)
            return after - before > allowed

        if exceeds(min(middle), min(last)) and exceeds(median(middle), median(last)):
            found.append(f"{name} grows from {min(middle):,.1f} to {min(last):,.1f}")
    return found

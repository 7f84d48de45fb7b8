"""A long run: `python -m tests.soak [--minutes 60] [--device cuda] [--backend eager]`.

Trains and infers with random sizes, compiles and drops functions, resets, calls from threads and
interrupts. Compares every result with eager mode, and samples memory, objects, descriptors, threads
and disk. Exits with 1 if a result is wrong or a resource grows.

New functions have new kernels. A disk cache of its own has a bound that the run reaches soon.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from dataclasses import astuple

import click

from magpy_like.disk_cache.user_settings import cache_root
from tests.soak.activities import Activities
from tests.soak.resources import Resources, growing

CACHE_SIZE = 3
"""MiB."""
_ROW = "{:>7} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>9} {:>9} {:>9}"


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--backend", default="magpy", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--samples", default=60, show_default=True, help="Samples of the resources.")
def main(minutes: float, device: str, backend: str, seed: int, samples: int) -> None:
    """Prints a row per sample, and the resources that grow."""
    warnings.filterwarnings("ignore", message=".*runs eagerly from now on")
    warnings.filterwarnings("error", message="magpy_like compiles nothing")  # nothing to see then
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"MAGPY_CACHE_DIR": cache, "MAGPY_CACHE_SIZE": f"{CACHE_SIZE}MiB"}
        taken = _run(Activities(seed, device, backend), minutes * 60, samples, device)
    found = growing(taken, CACHE_SIZE)
    print("\n".join(found) or "nothing grows")
    sys.exit(bool(found))


def _run(activities: Activities, seconds: float, samples: int, device: str) -> list[Resources]:
    """Samples of the resources at equal distances; prints each."""
    began, taken = time.monotonic(), []
    names = ("seconds", "calls", "interr.", *Resources.__dataclass_fields__)
    print(_ROW.format(*(name[-9:] for name in names)))
    for k in range(1, samples + 1):
        while time.monotonic() < began + k * seconds / samples:
            activities.once()
        taken.append(Resources.now(cache_root(), device))
        numbers = (f"{number:,.0f}" for number in astuple(taken[-1]))
        elapsed = f"{time.monotonic() - began:.0f}"
        print(_ROW.format(elapsed, activities.calls, activities.interrupted, *numbers), flush=True)
    return taken


if __name__ == "__main__":
    main()

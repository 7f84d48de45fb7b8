"""Running sums and maxima, compared with eager mode: `python -m benchmarks.scans --device cuda`.

In this project's kernels, one program instance scans a row block by block. On a GPU, a few long
rows fall back to ATen, which splits a row between programs.
"""

from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import (
    describe_machine,
    format_seconds,
    format_table,
    geometric_mean,
    measure,
)

SHAPES = (
    ((4096, 4096), 1), ((4096, 4096), 0), ((65536, 128), 1), ((2048, 20_000), 1),
    ((256, 30_000), 1), ((64, 100_000), 1), ((384, 1024, 64), 1), ((4_000_000,), 0),
)  # fmt: skip
"""Shapes and scanned dimensions."""
SCANS = (torch.cumsum, torch.cummax, torch.logcumsumexp)


@click.command()
@click.option("--rounds", default=15, show_default=True, help="Samples per candidate.")
@click.option("--device", default="cpu", type=click.Choice(["cpu", "cuda"]), show_default=True)
@torch.no_grad()
def main(rounds: int, device: str) -> None:
    """Prints the time of each scan in eager mode and compiled, and their ratio."""
    rows, ratios = [], []
    for scan in SCANS:
        for shape, dim in SHAPES:
            magpy.reset()

            def program(x: torch.Tensor, scan: Any = scan, dim: int = dim) -> Any:
                return scan(x, dim)

            x, fast = torch.randn(shape, device=device), magpy.compile(program)
            calls = {"eager": lambda: program(x), "magpy": lambda: fast(x)}  # noqa: B023
            timing = measure(calls, rounds=rounds)
            ratios.append(timing.ratio("eager", "magpy"))
            where = f"{'x'.join(map(str, shape))}, {dim}"
            times = [format_seconds(timing.median(label)) for label in calls]
            rows.append((scan.__name__, where, *times, f"{ratios[-1]:.2f}"))
            click.echo("  ".join(rows[-1]), err=True)  # progress
    print(f"Scans ({describe_machine()})\n")
    print(format_table(("scan", "shape, dimension", "eager", "magpy", "speed"), rows))
    print(f"\ngeometric mean {geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()

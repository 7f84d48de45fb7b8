"""Kernels on one GPU: `python -m benchmarks.gpu_kernels`.

Share of a plain copy's bandwidth, as in `benchmarks.kernels`, at a size that fills a large card.
"""

import functools
import traceback
from collections.abc import Callable
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.kernels import GOAL, count_bytes, make_suite
from benchmarks.paired_timing import (
    describe_machine,
    format_seconds,
    format_table,
    geometric_mean,
    measure,
)
from benchmarks.zoo_models import COMPILERS


def format_current_error() -> str:
    return traceback.format_exc().strip().splitlines()[-1]


@torch.no_grad()
def run_kernels(scale: int, rounds: int, compilers: list[str]) -> None:
    rows, shares = [], []
    for name, (function, make) in make_suite(scale, "cuda").items():
        torch.compiler.reset()
        magpy.reset()
        inputs = make()
        expected = function(*inputs)
        size = count_bytes(inputs, expected)
        source = torch.ones(size // 8, device="cuda")
        calls: dict[str, Callable[[], Any]] = {"copy": source.clone}
        for label in compilers:
            call = functools.partial(COMPILERS[label](function), *inputs)
            try:
                torch.testing.assert_close(call(), expected, rtol=1e-3, atol=1e-3)
                calls[label] = call
            except Exception:
                click.echo(f"{name}, {label}: {format_current_error()}", err=True)
        del expected
        timing = measure(calls, rounds=rounds)
        share = {label: timing.ratio("copy", label) for label in calls}
        cells = [f"{share[label]:.2f}" if label in share else "-" for label in compilers]
        rows.append(
            [name, f"{size / 2**20:.0f} MiB", format_seconds(timing.median("copy")), *cells]
        )
        shares += [share[c] for c in share if c.startswith("magpy")][:1]
        click.echo("  ".join(rows[-1]), err=True)  # progress
    print(f"Share of the bandwidth of a copy of the same bytes, goal {GOAL:.2f}\n")
    print(format_table(["kernel", "moves", "copy", *compilers], rows))
    if shares:
        print(f"\ngeometric mean {geometric_mean(shares):.2f}\n")


@click.command()
@click.option("--scale", default=131072, show_default=True, help="Rows of 1024 floats.")
@click.option("--compilers", default="eager,inductor,magpy", show_default=True)
@click.option("--rounds", default=11, show_default=True)
def main(scale: int, compilers: str, rounds: int) -> None:
    """Prints the kernels' share of copy bandwidth."""
    print(describe_machine(), "\n")
    run_kernels(scale, rounds, compilers.split(","))


if __name__ == "__main__":
    main()

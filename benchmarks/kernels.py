"""Bandwidth of single kernels: `python -m benchmarks.kernels`.

Each function reads its inputs and writes its outputs once if it is fully fused; a plain copy of the
same number of bytes takes turns with it. All candidates cycle through enough sets of inputs that no
cache holds them. (Otherwise a loss would compete with a copy within the cache: of the bytes that
the loss only reads, the copy reads half.) The copy writes into existing memory: in memory new from
the system, page faults would cost it several times the copying, and any kernel would look fast. The
functions allocate their results. At the default scale every result is slightly below the 32 MiB
from which the allocator requests memory from the system each time, and reuses memory that the
previous call freed. Goal: within 15 % of the copy.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import click
import torch
import torch.nn.functional as F

import magpy_like as magpy
from benchmarks.paired_timing import (
    describe_machine,
    format_seconds,
    format_table,
    geometric_mean,
    measure,
)
from magpy_like.torch_compat import pytree

GOAL = 1 / 1.15
MIN_INPUT_BYTES = 2**29  # of all sets of inputs: beyond all caches


def make_suite(
    scale: int, device: str
) -> dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """Returns functions and factories of their inputs by name.

    Args:
        scale: rows of 1024 features, or an equal number of elements.
        device: "cpu" or "cuda".
    """

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device)

    features = 1024
    weight, bias = randn(features), randn(features)
    channels = 64
    mean, variance = torch.zeros(channels, device=device), torch.ones(channels, device=device)
    pixels = scale * features // (channels * 32 * 32)
    labels = torch.randint(0, features, (scale,), device=device)
    return {
        "GELU": (F.gelu, lambda: (randn(scale, features),)),
        "layer norm": (
            lambda x, w, b: F.layer_norm(x, (features,), w, b),
            lambda: (randn(scale, features), weight, bias),
        ),
        "softmax": (lambda x: x.softmax(-1), lambda: (randn(scale, features),)),
        "batch norm, training": (
            lambda x, w, b: F.batch_norm(x, mean, variance, w, b, training=True),
            lambda: (randn(pixels, channels, 32, 32), randn(channels), randn(channels)),
        ),
        "cross entropy": (F.cross_entropy, lambda: (randn(scale, features), labels)),
        "transposed add": (
            lambda x, y: x + y.t(),
            lambda: (randn(features, scale), randn(scale, features)),
        ),
        "cat": (
            lambda x, y: torch.cat([x, y * 2], 1),
            lambda: (randn(scale, features // 2), randn(scale, features // 2)),
        ),
    }


def count_bytes(inputs: Any, outputs: Any) -> int:
    """Returns the bytes of all inputs and outputs, each counted once."""
    tensors = pytree.tree_leaves((inputs, outputs))
    return sum(t.numel() * t.element_size() for t in tensors)


def cycle_through(function: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Callable[[], Any]:
    """Returns a function that calls `function` with the next of `sets` each time."""
    cycle = itertools.cycle(sets)
    return lambda: function(*next(cycle))


@click.command()
@click.option("--scale", default=7168, show_default=True, help="Rows of 1024 floats.")
@click.option("--rounds", default=15, show_default=True, help="Samples per candidate.")
@click.option("--device", default="cpu", type=click.Choice(["cpu", "cuda"]), show_default=True)
@click.option("--inductor/--no-inductor", default=True, show_default=True)
@torch.no_grad()
def main(scale: int, rounds: int, device: str, inductor: bool) -> None:
    """Prints the share of copy bandwidth of eager mode, Inductor and magpy_like."""
    rows, shares = [], []
    # With one thread, process time excludes other processes on a shared machine.
    is_single_threaded = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if is_single_threaded else time.perf_counter
    for name, (function, make) in make_suite(scale, device).items():
        torch.compiler.reset()
        magpy.reset()
        inputs = make()
        size = count_bytes(inputs, function(*inputs))
        count = math.ceil(MIN_INPUT_BYTES / size)
        sets = [inputs, *(make() for _ in range(count - 1))]
        halves = torch.ones(count, 2, size // 8, device=device)
        compiled = {"eager": function, "magpy": magpy.compile(function)}
        if inductor:
            compiled["inductor"] = torch.compile(function)
        calls: dict[str, Callable[[], Any]] = {
            label: cycle_through(call, sets) for label, call in compiled.items()
        }
        calls["copy"] = cycle_through(torch.Tensor.copy_, [tuple(pair) for pair in halves])
        timing = measure(calls, rounds=rounds, clock=clock)
        share = {label: timing.ratio("copy", label) for label in compiled}
        shares.append(share["magpy"])
        copy = timing.median("copy")
        rows.append(
            (
                name,
                f"{size / 2**20:.0f} MiB",
                f"{size / copy / 1e9:.1f} GB/s",
                format_seconds(timing.median("magpy")),
                *(f"{share[label]:.2f}" for label in compiled),
                "yes" if share["magpy"] >= GOAL else "no",
            )
        )
        click.echo("  ".join(rows[-1]), err=True)  # progress
    print(f"Share of the bandwidth of a copy of the same bytes ({describe_machine()})\n")
    header = ("kernel", "moves", "copy", "time", *compiled, f"at least {GOAL:.2f}")
    print(format_table(header, rows))
    print(f"\ngeometric mean {geometric_mean(shares):.2f}")


if __name__ == "__main__":
    main()

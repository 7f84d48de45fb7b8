"""Kernels and whole models on one GPU: `python -m benchmarks.gpu`.

Kernels: the share of a plain copy's bandwidth, as in `benchmarks.kernels`, at a size that fills a
large card. Models: speed-ups over eager, next to Inductor's, with `magpy.compile` and with this
compiler behind Dynamo's capture.
"""

import functools
import traceback
from collections.abc import Callable
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.kernels import GOAL, moved, suite
from benchmarks.paired_timing import geometric_mean, machine, measure, seconds, table
from benchmarks.zoo_models import COMPILERS, inferred_exactly, is_wrong, prepared


def first_error() -> str:
    return traceback.format_exc().strip().splitlines()[-1]


@torch.no_grad()
def kernels(scale: int, rounds: int, compilers: list[str]) -> None:
    rows, shares = [], []
    for name, (function, make) in suite(scale, "cuda").items():
        torch.compiler.reset()
        magpy.reset()
        inputs = make()
        expected = function(*inputs)
        size = moved(inputs, expected)
        source = torch.ones(size // 8, device="cuda")
        calls: dict[str, Callable[[], Any]] = {"copy": source.clone}
        for label in compilers:
            call = functools.partial(COMPILERS[label](function), *inputs)
            try:
                torch.testing.assert_close(call(), expected, rtol=1e-3, atol=1e-3)
                calls[label] = call
            except Exception:
                click.echo(f"{name}, {label}: {first_error()}", err=True)
        del expected
        timing = measure(calls, rounds=rounds)
        share = {label: timing.ratio("copy", label) for label in calls}
        cells = [f"{share[label]:.2f}" if label in share else "-" for label in compilers]
        rows.append([name, f"{size / 2**20:.0f} MiB", seconds(timing.median("copy")), *cells])
        shares += [share[c] for c in share if c.startswith("magpy")][:1]
        click.echo("  ".join(rows[-1]), err=True)  # progress
    print(f"Share of the bandwidth of a copy of the same bytes, goal {GOAL:.2f}\n")
    print(table(["kernel", "moves", "copy", *compilers], rows))
    if shares:
        print(f"\ngeometric mean {geometric_mean(shares):.2f}\n")


def on_gpu(name: str, mode: str, compiler: str, batch: int) -> Callable[[], Any]:
    return prepared(name, mode, compiler, batch, device="cuda")[0]


def models(names: list[str], modes: list[str], batch: int, rounds: int, wanted: list[str]) -> None:
    rows = []
    for mode in modes:
        for name in names:
            torch.compiler.reset()
            magpy.reset()
            calls = {}
            eager = on_gpu(name, mode, "eager", batch)
            exact = functools.partial(inferred_exactly, name, batch, device="cuda")
            for label in wanted:
                try:
                    call = on_gpu(name, mode, label, batch)
                    call()  # natively, where `magpy.compile` has captured it
                    if mode == "inference" and is_wrong(call(), eager(), exact):
                        raise ValueError("wrong result")
                    calls[label] = call
                except Exception:
                    click.echo(f"{name}, {mode}, {label}: {first_error()}", err=True)
            timing = measure(calls, rounds=rounds)
            speed = [f"{timing.ratio('eager', c):.2f}x" if c in calls else "-" for c in wanted[1:]]
            rows.append([f"{name}, {mode}", seconds(timing.median("eager")), *speed])
            click.echo("  ".join(rows[-1]), err=True)  # progress
    print("Speed over eager\n")
    print(table(["model", "eager", *wanted[1:]], rows))


@click.command()
@click.option("--scale", default=131072, show_default=True, help="Rows of 1024 floats; 0: none.")
@click.option("--names", default="BERT,ResNet-101", show_default=True, help="Empty: no models.")
@click.option("--modes", default="inference,training", show_default=True)
@click.option("--compilers", default="eager,inductor,magpy,magpy-backend", show_default=True)
@click.option("--batch", default=16, show_default=True)
@click.option("--rounds", default=11, show_default=True)
def main(scale: int, names: str, modes: str, compilers: str, batch: int, rounds: int) -> None:
    """Prints the kernels' share of copy bandwidth, then the models' speed over eager."""
    print(machine(), "\n")
    if scale:
        kernels(scale, rounds, [c for c in compilers.split(",") if c != "magpy-backend"])
    if names:
        models(names.split(","), modes.split(","), batch, rounds, compilers.split(","))


if __name__ == "__main__":
    main()

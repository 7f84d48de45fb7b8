"""Kernels and whole models on one GPU: `python -m benchmarks.gpu`.

Kernels: share of a plain copy's bandwidth, as in `benchmarks.kernels`, at a size that fills a large
card. Models: speed over eager mode with `magpy.compile`, with Dynamo's capture and this compiler
(`magpy-backend`), and with Inductor.
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
from benchmarks.zoo_models import COMPILERS, infer_in_float64, is_wrong, prepare_call


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


def prepare_gpu_call(name: str, mode: str, compiler: str, batch: int) -> Callable[[], Any]:
    return prepare_call(name, mode, compiler, batch, device="cuda")[0]


def run_models(
    names: list[str], modes: list[str], batch: int, rounds: int, wanted: list[str]
) -> None:
    rows = []
    for mode in modes:
        for name in names:
            torch.compiler.reset()
            magpy.reset()
            calls = {}
            eager = prepare_gpu_call(name, mode, "eager", batch)
            exact = functools.partial(infer_in_float64, name, batch, device="cuda")
            for label in wanted:
                try:
                    call = prepare_gpu_call(name, mode, label, batch)
                    call()  # `magpy.compile` captures
                    if mode == "inference" and is_wrong(call(), eager(), exact):
                        raise ValueError("wrong result")
                    calls[label] = call
                except Exception:
                    click.echo(f"{name}, {mode}, {label}: {format_current_error()}", err=True)
            timing = measure(calls, rounds=rounds)
            speed = [f"{timing.ratio('eager', c):.2f}x" if c in calls else "-" for c in wanted[1:]]
            rows.append([f"{name}, {mode}", format_seconds(timing.median("eager")), *speed])
            click.echo("  ".join(rows[-1]), err=True)  # progress
    print("Speed over eager\n")
    print(format_table(["model", "eager", *wanted[1:]], rows))


@click.command()
@click.option("--scale", default=131072, show_default=True, help="Rows of 1024 floats; 0: none.")
@click.option("--names", default="BERT,ResNet-101", show_default=True, help="Empty: no models.")
@click.option("--modes", default="inference,training", show_default=True)
@click.option("--compilers", default="eager,inductor,magpy,magpy-backend", show_default=True)
@click.option("--batch", default=16, show_default=True)
@click.option("--rounds", default=11, show_default=True)
def main(scale: int, names: str, modes: str, compilers: str, batch: int, rounds: int) -> None:
    """Prints the kernels' share of copy bandwidth, then the models' speed over eager mode."""
    print(describe_machine(), "\n")
    if scale:
        run_kernels(scale, rounds, [c for c in compilers.split(",") if c != "magpy-backend"])
    if names:
        run_models(names.split(","), modes.split(","), batch, rounds, compilers.split(","))


if __name__ == "__main__":
    main()

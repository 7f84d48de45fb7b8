"""The model zoo on the CPU against eager and Inductor: `python -m benchmarks.cpu`.

First calls: every sample in a process of its own that finds no caches, imports warmed up before, so
that what is timed is capture and compilation. They are two, as our backward pass is compiled at the
first matched call, Inductor's at the one before. Steady state: eager, `torch.compile` and
`magpy_like.compile` take turns in one process, which finds the caches that the last of the first
calls left; medians, ratios, and their geometric mean. Goals: at least Inductor's speed in the
steady state, at most half of its time in the first calls.
"""

import contextlib
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import unittest.mock
from collections.abc import Iterator, Sequence

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import geometric_mean, machine, measure, seconds, table
from benchmarks.zoo_models import COMPILERS, inferred_exactly, is_wrong, prepared
from zoo import ZOO, Size

MODES = ("inference", "training")
FIRST = 2  # after which every compiler has compiled all
CALLS = 100  # for the figure that includes the first ones


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Every compiler's caches on disk empty, for this process and those that it starts."""
    with tempfile.TemporaryDirectory() as place:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{place}/i", "MAGPY_CACHE_DIR": f"{place}/m"}
        with unittest.mock.patch.dict(os.environ, caches):
            yield


def first_calls(name: str, mode: str, compiler: str, batch: int, size: Size) -> float:
    """Seconds of the first calls, in a new process."""
    words = ["--models", name, "--modes", mode, "--compilers", compiler]
    words += ["--batch", str(batch), "--size", size, "--only-first-calls"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cpu", *words], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout.split()[-1])


def median_first_calls(
    name: str, mode: str, compilers: Sequence[str], batch: int, size: Size, rounds: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds of the first calls by compiler, and the errors of those that failed. What the
    last round puts into the caches stays there."""
    medians, errors = {}, {}
    for compiler in compilers:
        samples = []
        try:
            for i in range(rounds):
                with contextlib.nullcontext() if i == rounds - 1 else empty_caches():
                    samples.append(first_calls(name, mode, compiler, batch, size))
            medians[compiler] = statistics.median(samples)
        except RuntimeError as error:
            errors[compiler] = str(error)
    return medians, errors


def time_first_calls(name: str, mode: str, compiler: str, batch: int, size: Size) -> float:
    # Imports and one-time set-up of the compiler are not what is measured.
    small = torch.ones(8, requires_grad=mode == "training")
    out = COMPILERS[compiler](lambda x: (x * 2).sum())(small)
    if mode == "training":
        out.backward()
    call, _ = prepared(name, mode, compiler, batch, size)
    begin = time.perf_counter()
    for _ in range(FIRST):
        call()
    return time.perf_counter() - begin


def steady(
    name: str, mode: str, compilers: Sequence[str], batch: int, size: Size, rounds: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds per call by compiler, and the errors of those that failed. Of one that gives
    another output than eager a speed means nothing; in training, random numbers make that moot."""
    torch.compiler.reset()
    magpy.reset()
    calls, errors = {}, {}
    eager, _ = prepared(name, mode, "eager", batch, size)
    exact = functools.partial(inferred_exactly, name, batch, size)
    for compiler in compilers:
        try:
            call, compiled = prepared(name, mode, compiler, batch, size)
            call()
            if compiler == "magpy" and not magpy.cache_info(compiled).records:
                errors[compiler] = "nothing was compiled"
            elif mode == "inference" and is_wrong(call(), eager(), exact):
                errors[compiler] = "wrong result"
            else:
                calls[compiler] = call
        except Exception as error:
            errors[compiler] = "".join(traceback.format_exception_only(error)).strip()
            if compiler == "eager":  # there is nothing to compare with
                return {}, errors
    timing = measure(calls, rounds=rounds)
    return {compiler: timing.median(compiler) for compiler in calls}, errors


@click.command()
@click.option("--models", default=",".join(ZOO), help="Names, separated by commas.")
@click.option("--modes", default=",".join(MODES), show_default=True)
@click.option("--compilers", default="eager,inductor,magpy", show_default=True)
@click.option("--batch", default=4, show_default=True, help="Samples per call.")
@click.option("--size", default="real", type=click.Choice(["real", "small"]), show_default=True)
@click.option("--rounds", default=11, show_default=True, help="Samples of the steady state.")
@click.option("--first-rounds", default=1, show_default=True, help="Samples of the first calls.")
@click.option("--only-first-calls", is_flag=True, hidden=True)
def main(
    models: str,
    modes: str,
    compilers: str,
    batch: int,
    size: Size,
    rounds: int,
    first_rounds: int,
    only_first_calls: bool,
) -> None:
    """Prints, per model and mode, eager's time and each compiler's speed-up over it."""
    names, wanted = models.split(","), compilers.split(",")
    if only_first_calls:
        print(time_first_calls(names[0], modes, wanted[0], batch, size))
        return
    others = [c for c in wanted if c != "eager"]
    print(f"{size} models, batch {batch} ({machine()})")
    for mode in modes.split(","):
        rows, speed, cold, total = [], {}, {}, {}
        for name in names:
            if mode == "training" and not ZOO[name].trains:
                continue
            with empty_caches():
                begins, failed = median_first_calls(name, mode, others, batch, size, first_rounds)
                medians, errors = steady(name, mode, wanted, batch, size, rounds)
            errors |= failed
            if "eager" in errors:
                print(f"{name}, eager: {errors['eager']}")
                continue
            row = [name, seconds(medians["eager"])]
            for compiler in others:
                if compiler in errors:
                    print(f"{name}, {compiler}: {errors[compiler]}")
                    row += ["-", "-", "-"]
                    continue
                key = (name, compiler)
                speed[key] = medians["eager"] / medians[compiler]
                begin = cold[key] = begins[compiler]
                total[key] = (
                    CALLS * medians["eager"] / (begin + (CALLS - FIRST) * medians[compiler])
                )
                row += [f"{speed[key]:.2f}x", seconds(begin), f"{total[key]:.2f}x"]
            rows.append(row)
            click.echo("  ".join(row), err=True)  # progress
        header = ["model", "eager"]
        for compiler in others:
            header += [compiler, f"first {FIRST}", f"{CALLS} calls"]
        print(f"\n{mode}\n")
        print(table(header, rows))
        for compiler in others:
            mine = [value for (_, c), value in speed.items() if c == compiler]
            if mine:
                print(f"{compiler}: {geometric_mean(mine):.3f}x eager over {len(mine)} models")
        for compiler in others:
            shared = [n for n in names if {(n, compiler), (n, "inductor")} <= speed.keys()]
            if compiler != "inductor" and shared:
                ratio = [speed[n, compiler] / speed[n, "inductor"] for n in shared]
                cold_ratio = [cold[n, compiler] / cold[n, "inductor"] for n in shared]
                with_first = [total[n, compiler] / total[n, "inductor"] for n in shared]
                print(
                    f"{compiler} / inductor over {len(shared)} models: "
                    f"speed {geometric_mean(ratio):.3f} (goal 1), "
                    f"first {FIRST} calls {geometric_mean(cold_ratio):.3f} (goal 0.5), "
                    f"speed over {CALLS} calls {geometric_mean(with_first):.3f}"
                )


if __name__ == "__main__":
    main()

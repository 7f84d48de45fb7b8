"""Models of the zoo on the CPU, compared with eager mode and Inductor: `python -m benchmarks.cpu`.

First calls: each sample runs in a new process with empty caches. Imports are warmed up before, so
that the time is that of capture and compilation. Two calls, because this project compiles the
backward pass at the first matched call, Inductor at the call before. Steady state: eager mode,
`torch.compile` and `magpy_like.compile` take turns in one process, with the caches that the last of
the first calls filled; medians, ratios, and their geometric mean. Goals: at least Inductor's speed
in the steady state, at most half of its time in the first calls.
"""

import contextlib
import dataclasses
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import unittest.mock
from collections.abc import Iterator
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
from benchmarks.zoo_models import COMPILERS, infer_in_float64, is_wrong, prepare_call
from zoo import ZOO, Size

MODES = ("inference", "training")
FIRST_CALLS = 2  # calls after which every compiler has compiled everything
TOTAL_CALLS = 100  # calls in the speed that includes the first ones


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of the benchmark.

    Attributes:
        models: names of models.
        modes: of `MODES`.
        compilers: of `COMPILERS`.
        batch: samples per call.
        size: size of the models.
        rounds: samples of the steady state.
        first_rounds: samples of the first calls.
    """

    models: list[str]
    modes: list[str]
    compilers: list[str]
    batch: int
    size: Size
    rounds: int
    first_rounds: int

    @property
    def compared(self) -> list[str]:
        """The compilers without eager mode."""
        return [compiler for compiler in self.compilers if compiler != "eager"]


@dataclasses.dataclass(frozen=True)
class Speed:
    """Result of one model in one compiler.

    Attributes:
        steady: speed over eager mode in the steady state.
        first: seconds of the first calls.
        total: speed over eager mode in `TOTAL_CALLS` calls, the first ones included.
    """

    steady: float
    first: float
    total: float


Speeds = dict[tuple[str, str], Speed]  # by model and compiler


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Empties the disk caches of all compilers, for this process and those that it starts."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/i", "MAGPY_CACHE_DIR": f"{folder}/m"}
        with unittest.mock.patch.dict(os.environ, caches):
            yield


def time_first_calls(name: str, mode: str, compiler: str, batch: int, size: Size) -> float:
    """Returns the seconds of the first calls in this process."""
    # Warm up: imports and one-time set-up of the compiler are not measured.
    small = torch.ones(8, requires_grad=mode == "training")
    out = COMPILERS[compiler](lambda x: (x * 2).sum())(small)
    if mode == "training":
        out.backward()
    call, _ = prepare_call(name, mode, compiler, batch, size)
    begin = time.perf_counter()
    for _ in range(FIRST_CALLS):
        call()
    return time.perf_counter() - begin


def time_first_calls_in_new_process(
    name: str, mode: str, compiler: str, settings: Settings
) -> float:
    """Returns the seconds of the first calls in a new process.

    Raises:
        RuntimeError: the process failed, with the last line of its error.
    """
    words = ["--models", name, "--modes", mode, "--compilers", compiler, "--only-first-calls"]
    words += ["--batch", str(settings.batch), "--size", settings.size]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cpu", *words], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout.split()[-1])


def measure_first_calls(
    name: str, mode: str, settings: Settings
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns median seconds of the first calls, and errors, by compiler.

    The caches of the last round remain.
    """
    medians, errors = {}, {}
    for compiler in settings.compared:
        samples = []
        try:
            for i in range(settings.first_rounds):
                is_last = i == settings.first_rounds - 1
                with contextlib.nullcontext() if is_last else empty_caches():
                    samples.append(time_first_calls_in_new_process(name, mode, compiler, settings))
            medians[compiler] = statistics.median(samples)
        except RuntimeError as error:
            errors[compiler] = str(error)
    return medians, errors


def measure_steady_state(
    name: str, mode: str, settings: Settings
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns median seconds per call, and errors, by compiler.

    A compiler with a wrong result has an error instead of a time. In training, results are not
    compared: random numbers differ.
    """
    torch.compiler.reset()
    magpy.reset()
    calls, errors = {}, {}
    eager, _ = prepare_call(name, mode, "eager", settings.batch, settings.size)
    exact = functools.partial(infer_in_float64, name, settings.batch, settings.size)
    for compiler in settings.compilers:
        try:
            call, compiled = prepare_call(name, mode, compiler, settings.batch, settings.size)
            call()
            if compiler == "magpy" and not magpy.cache_info(compiled).records:
                errors[compiler] = "nothing was compiled"
            elif mode == "inference" and is_wrong(call(), eager(), exact):
                errors[compiler] = "wrong result"
            else:
                calls[compiler] = call
        except Exception as error:
            errors[compiler] = "".join(traceback.format_exception_only(error)).strip()
            if compiler == "eager":  # no reference
                return {}, errors
    timing = measure(calls, rounds=settings.rounds)
    return {compiler: timing.median(compiler) for compiler in calls}, errors


def measure_model(name: str, mode: str, settings: Settings, speeds: Speeds) -> list[str] | None:
    """Measures one model, adds its results to `speeds` and returns its row of the table.

    Prints errors. Returns None if eager mode fails.
    """
    with empty_caches():
        first, first_errors = measure_first_calls(name, mode, settings)
        medians, errors = measure_steady_state(name, mode, settings)
    errors |= first_errors
    if "eager" in errors:
        print(f"{name}, eager: {errors['eager']}")
        return None
    eager = medians["eager"]
    row = [name, format_seconds(eager)]
    for compiler in settings.compared:
        if compiler in errors:
            print(f"{name}, {compiler}: {errors[compiler]}")
            row += ["-", "-", "-"]
            continue
        later = (TOTAL_CALLS - FIRST_CALLS) * medians[compiler]
        speed = Speed(
            steady=eager / medians[compiler],
            first=first[compiler],
            total=TOTAL_CALLS * eager / (first[compiler] + later),
        )
        speeds[name, compiler] = speed
        row += [f"{speed.steady:.2f}x", format_seconds(speed.first), f"{speed.total:.2f}x"]
    click.echo("  ".join(row), err=True)  # progress
    return row


def run_mode(mode: str, settings: Settings) -> None:
    """Measures all models in one mode and prints the table and the means."""
    speeds: Speeds = {}
    rows = []
    for name in settings.models:
        if mode == "training" and not ZOO[name].trains:
            continue
        row = measure_model(name, mode, settings, speeds)
        if row is not None:
            rows.append(row)
    header = ["model", "eager"]
    for compiler in settings.compared:
        header += [compiler, f"first {FIRST_CALLS}", f"{TOTAL_CALLS} calls"]
    print(f"\n{mode}\n")
    print(format_table(header, rows))
    for compiler in settings.compared:
        print_mean_over_eager(compiler, speeds)
    for compiler in settings.compared:
        if compiler != "inductor":
            print_means_over_inductor(compiler, settings.models, speeds)


def print_mean_over_eager(compiler: str, speeds: Speeds) -> None:
    steady = [speed.steady for (_, of), speed in speeds.items() if of == compiler]
    if steady:
        print(f"{compiler}: {geometric_mean(steady):.3f}x eager over {len(steady)} models")


def print_means_over_inductor(compiler: str, models: list[str], speeds: Speeds) -> None:
    pairs = [
        (speeds[name, compiler], speeds[name, "inductor"])
        for name in models
        if {(name, compiler), (name, "inductor")} <= speeds.keys()
    ]
    if not pairs:
        return
    steady = geometric_mean([ours.steady / theirs.steady for ours, theirs in pairs])
    first = geometric_mean([ours.first / theirs.first for ours, theirs in pairs])
    total = geometric_mean([ours.total / theirs.total for ours, theirs in pairs])
    print(
        f"{compiler} / inductor over {len(pairs)} models: speed {steady:.3f} (goal 1), "
        f"first {FIRST_CALLS} calls {first:.3f} (goal 0.5), "
        f"speed over {TOTAL_CALLS} calls {total:.3f}"
    )


def _split_names(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    return value.split(",")


@click.command()
@click.option("--models", default=",".join(ZOO), callback=_split_names, help="Comma-separated.")
@click.option("--modes", default=",".join(MODES), callback=_split_names, show_default=True)
@click.option(
    "--compilers", default="eager,inductor,magpy", callback=_split_names, show_default=True
)
@click.option("--batch", default=4, show_default=True, help="Samples per call.")
@click.option("--size", default="real", type=click.Choice(["real", "small"]), show_default=True)
@click.option("--rounds", default=11, show_default=True, help="Samples of the steady state.")
@click.option("--first-rounds", default=1, show_default=True, help="Samples of the first calls.")
@click.option("--only-first-calls", is_flag=True, hidden=True)
def main(only_first_calls: bool, **options: Any) -> None:
    """Prints, per model and mode, eager mode's time and each compiler's speed over it."""
    settings = Settings(**options)
    if only_first_calls:
        name, mode, compiler = settings.models[0], settings.modes[0], settings.compilers[0]
        print(time_first_calls(name, mode, compiler, settings.batch, settings.size))
        return
    print(f"{settings.size} models, batch {settings.batch} ({describe_machine()})")
    for mode in settings.modes:
        run_mode(mode, settings)


if __name__ == "__main__":
    main()

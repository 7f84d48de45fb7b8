"""Models with inputs that vary from call to call: `python -m benchmarks.dynamic`.

MagPy's Figure 17: batches uniform in 2 to 16, and batches of 8 sequences of 32 to 256 tokens.
Figure 18: programs with control flow, the unrolled LSTM and BlockDrop; also that LSTM over 2 to 16
time steps. Eager mode, `torch.compile(dynamic=True)` and `magpy_like.compile(dynamic=True)` take
turns in one process, each on the same inputs in the same order. Inference without gradients. Goal:
faster than Dynamo on each.
"""

import random
from collections.abc import Callable
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import (
    PairedTiming,
    describe_machine,
    differs,
    format_seconds,
    format_table,
    geometric_mean,
    measure,
)
from zoo import ZOO, Size, language_models

COMPILERS: dict[str, Callable[..., Any]] = {
    "eager": lambda target: target,
    "dynamo": lambda target: torch.compile(target, dynamic=True),
    "magpy": lambda target: magpy.compile(target, dynamic=True),
}
# Ranges of the sizes that vary, and the batch where it does not.
BATCHES, LENGTHS, STEPS, BATCH = (2, 16), (32, 256), (2, 16), 8
# Title: name in the zoo, property that varies.
WORKLOADS = {
    **{f"{name}-bs": (name, "batch") for name in ("ResNet-18", "DenseNet-121", "BERT", "DeBERTa")},
    **{f"{name}-seqlen": (name, "length") for name in ("BERT", "DeBERTa")},
    "LSTM": ("LSTM", "data"),
    "LSTM-steps": ("LSTM", "steps"),
    "BlockDrop": ("BlockDrop", "data"),
}


def draw_inputs(model: Any, name: str, varying: str, size: Size, count: int) -> list[Any]:
    """Returns the arguments (args, kwargs) of `count` calls, with sizes or data drawn for each."""
    random_source, inputs = random.Random(0), []
    default_length = language_models.LENGTH[size]
    for i in range(count):
        batch = random_source.randint(*BATCHES) if varying == "batch" else BATCH
        if varying == "length":
            language_models.LENGTH[size] = random_source.randint(*LENGTHS)
        args, kwargs = ZOO[name].inputs(model, seed=i, batch=batch)
        if varying == "steps":
            args = (torch.randn(random_source.randint(*STEPS), *args[0].shape[1:]),)
        inputs.append((args, kwargs))
    language_models.LENGTH[size] = default_length
    return inputs


def prepare_calls(
    compiler: str, model: Any, inputs: list[Any], expected: list[Any]
) -> tuple[Callable[[], None], str]:
    """Returns a function that runs all calls in a row, and an error message, "" if none."""
    compiled = COMPILERS[compiler](model)

    def run() -> None:
        with torch.no_grad():
            for args, kwargs in inputs:
                compiled(*args, **kwargs)

    try:
        for _ in range(2):  # it may take more than one call to detect all that varies
            with torch.no_grad():
                actual = [compiled(*args, **kwargs) for args, kwargs in inputs]
    except Exception as error:
        return run, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    wrong = any(differs(a, e) for a, e in zip(actual, expected, strict=True))
    if compiler == "magpy" and not magpy.cache_info(compiled).records:
        return run, "nothing was compiled"
    return run, "wrong result" if wrong else ""


def measure_workload(workload: str, size: Size, calls: int, rounds: int) -> PairedTiming:
    """Times all calls of a workload in a row; prints the errors of failed compilers."""
    torch.compiler.reset()
    magpy.reset()
    name, varying = WORKLOADS[workload]
    model = ZOO[name].make(seed=0, size=size)
    inputs = draw_inputs(model, name, varying, size, calls)
    with torch.no_grad():
        expected = [model(*args, **kwargs) for args, kwargs in inputs]
    candidates = {}
    for compiler in COMPILERS:
        run, error = prepare_calls(compiler, model, inputs, expected)
        if error:
            print(f"{workload}, {compiler}: {error}")
        else:
            candidates[compiler] = run
    return measure(candidates, rounds=rounds, warmup=1)


@click.command()
@click.option("--workloads", default=",".join(WORKLOADS), help="Names, separated by commas.")
@click.option("--size", default="real", type=click.Choice(["real", "small"]), show_default=True)
@click.option("--calls", default=8, show_default=True, help="Different inputs per sample.")
@click.option("--rounds", default=11, show_default=True, help="Samples of each candidate.")
def main(workloads: str, size: Size, calls: int, rounds: int) -> None:
    """Prints, per workload, eager mode's time per call and each compiler's speed over it."""
    print(f"{size} models, {calls} inputs ({describe_machine()})")
    rows, ratios = [], []
    for workload in workloads.split(","):
        timing = measure_workload(workload, size, calls, rounds)
        eager = timing.median("eager")
        row = [workload, format_seconds(eager / calls)]
        for compiler in list(COMPILERS)[1:]:
            is_timed = compiler in timing.samples
            row.append(f"{eager / timing.median(compiler):.2f}x" if is_timed else "-")
        if {"dynamo", "magpy"} <= timing.samples.keys():
            ratios.append(timing.ratio("dynamo", "magpy"))
            row.append(f"{ratios[-1]:.2f}x")
        else:
            row.append("-")
        rows.append(row)
        click.echo("  ".join(row), err=True)  # progress
    print()
    print(format_table(["workload", "eager", "dynamo", "magpy", "magpy over dynamo"], rows))
    if ratios:
        print(f"magpy over dynamo: {geometric_mean(ratios):.3f}x on {len(ratios)} workloads")


if __name__ == "__main__":
    main()

"""Models whose inputs vary from call to call: `python -m benchmarks.dynamic`.

MagPy's Figure 17: batches uniform in 2 to 16, and batches of 8 sequences of 32 to 256 tokens.
Figure 18: programs with control flow, the written-out LSTM and BlockDrop; and that LSTM over 2 to
16 time steps. Eager, `torch.compile(dynamic=True)` and `magpy_like.compile(dynamic=True)` take
turns in one process, each on the same inputs in the same order. Inference, no gradients. Goal:
faster than Dynamo on each.
"""

import random
from collections.abc import Callable
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import differs, geometric_mean, machine, measure, seconds, table
from zoo import ZOO, language_models

COMPILERS: dict[str, Callable[..., Any]] = {
    "eager": lambda target: target,
    "dynamo": lambda target: torch.compile(target, dynamic=True),
    "magpy": lambda target: magpy.compile(target, dynamic=True),
}
BATCHES, LENGTHS, STEPS, BATCH = (2, 16), (32, 256), (2, 16), 8
WORKLOADS = {
    **{f"{name}-bs": (name, "batch") for name in ("ResNet-18", "DenseNet-121", "BERT", "DeBERTa")},
    **{f"{name}-seqlen": (name, "length") for name in ("BERT", "DeBERTa")},
    "LSTM": ("LSTM", "data"),
    "LSTM-steps": ("LSTM", "steps"),
    "BlockDrop": ("BlockDrop", "data"),
}


def inputs_of(model: Any, name: str, varies: str, size: str, count: int) -> list[Any]:
    """Arguments of `count` calls: sizes or data are drawn anew for each."""
    chance, found = random.Random(0), []
    usual = language_models.LENGTH[size]
    for i in range(count):
        batch = chance.randint(*BATCHES) if varies == "batch" else BATCH
        if varies == "length":
            language_models.LENGTH[size] = chance.randint(*LENGTHS)
        args, kwargs = ZOO[name].inputs(model, seed=i, batch=batch)
        if varies == "steps":
            args = (torch.randn(chance.randint(*STEPS), *args[0].shape[1:]),)
        found.append((args, kwargs))
    language_models.LENGTH[size] = usual
    return found


def prepared(
    compiler: str, model: Any, calls: list[Any], expected: list[Any]
) -> tuple[Callable[[], None], str]:
    """All calls in a row, and what speaks against the candidate: nothing, if it is right."""
    compiled = COMPILERS[compiler](model)

    def run() -> None:
        with torch.no_grad():
            for args, kwargs in calls:
                compiled(*args, **kwargs)

    try:
        for _ in range(2):  # what varies may need more than one call to be known
            with torch.no_grad():
                actual = [compiled(*args, **kwargs) for args, kwargs in calls]
    except Exception as error:
        return run, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    wrong = any(differs(a, e) for a, e in zip(actual, expected, strict=True))
    if compiler == "magpy" and not magpy.cache_info(compiled).records:
        return run, "nothing was compiled"
    return run, "wrong result" if wrong else ""


@click.command()
@click.option("--workloads", default=",".join(WORKLOADS), help="Names, separated by commas.")
@click.option("--size", default="real", type=click.Choice(["real", "small"]), show_default=True)
@click.option("--calls", default=8, show_default=True, help="Different inputs per sample.")
@click.option("--rounds", default=11, show_default=True, help="Samples of each candidate.")
def main(workloads: str, size: Any, calls: int, rounds: int) -> None:
    """Prints, per workload, eager's time per call and each compiler's speed-up over it."""
    print(f"{size} models, {calls} inputs ({machine()})")
    rows, gained = [], []
    for workload in workloads.split(","):
        torch.compiler.reset()
        magpy.reset()
        name, varies = WORKLOADS[workload]
        model = ZOO[name].make(seed=0, size=size)
        given = inputs_of(model, name, varies, size, calls)
        with torch.no_grad():
            expected = [model(*args, **kwargs) for args, kwargs in given]
        candidates = {}
        for compiler in COMPILERS:
            run, problem = prepared(compiler, model, given, expected)
            if problem:
                print(f"{workload}, {compiler}: {problem}")
            else:
                candidates[compiler] = run
        timing = measure(candidates, rounds=rounds, warmup=1)
        eager = timing.median("eager")
        row = [workload, seconds(eager / calls)]
        for compiler in list(COMPILERS)[1:]:
            known = compiler in candidates
            row.append(f"{eager / timing.median(compiler):.2f}x" if known else "-")
        if {"dynamo", "magpy"} <= candidates.keys():
            gained.append(timing.median("dynamo") / timing.median("magpy"))
            row.append(f"{gained[-1]:.2f}x")
        else:
            row.append("-")
        rows.append(row)
        click.echo("  ".join(row), err=True)  # progress
    print()
    print(table(["workload", "eager", "dynamo", "magpy", "magpy over dynamo"], rows))
    if gained:
        print(f"magpy over dynamo: {geometric_mean(gained):.3f}x on {len(gained)} workloads")


if __name__ == "__main__":
    main()

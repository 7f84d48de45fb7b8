"""Cost of a matched call without its graph: `python -m benchmarks.overhead`.

The backend returns a constant, so that the time is that of the lookup of the record, its guard and
its mock. `torch.compile` with the same backend takes turns with it. Goal: at most a third of
Dynamo's time.
"""

from collections.abc import Callable
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import (
    PairedTiming,
    describe_machine,
    format_seconds,
    format_table,
    measure,
)
from zoo import ZOO

GOAL = 1 / 3


def constant_backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Runs the graph once; the compiled graph returns that result."""
    with torch.no_grad():
        result = gm(*inputs)
    return lambda *args: result


def make_programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Returns target, positional and keyword arguments by name."""
    programs: dict[str, Any] = {"x*2+1": (lambda x: x * 2 + 1, (torch.ones(8),), {})}
    for name, title in (("ResNet-101", "ResNet-101"), ("BERT", "BERT-base")):
        model = ZOO[name].make(seed=0, size="real")
        programs[title] = (model, *ZOO[name].inputs(model, seed=0, batch=1))
    return programs


def time_matched_calls(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rounds: int
) -> PairedTiming:
    torch.compiler.reset()
    magpy.reset()
    ours = magpy.compile(target, backend=constant_backend)
    dynamos = torch.compile(target, backend=constant_backend)
    for _ in range(2):
        ours(*args, **kwargs)
    info = magpy.cache_info(ours)
    if (info.hits, info.graphs) != (1, 1):
        raise SystemExit(f"the second call was not matched by a record with one graph: {info}")
    return measure(
        {"magpy": lambda: ours(*args, **kwargs), "dynamo": lambda: dynamos(*args, **kwargs)},
        rounds=rounds,
    )


@click.command()
@click.option("--rounds", default=31, show_default=True, help="Samples per candidate.")
@torch.no_grad()
def main(rounds: int) -> None:
    """Prints the time per matched call in magpy_like and in Dynamo, and their ratio."""
    rows = []
    for name, (target, args, kwargs) in make_programs().items():
        timing = time_matched_calls(target, args, kwargs, rounds)
        ratio = timing.ratio("magpy", "dynamo")
        rows.append(
            (
                name,
                format_seconds(timing.median("magpy")),
                format_seconds(timing.median("dynamo")),
                f"{ratio:.2f}",
                "yes" if ratio <= GOAL else "no",
            )
        )
    print(f"Matched call with a backend that returns a constant ({describe_machine()})\n")
    print(format_table(("program", "magpy", "dynamo", "ratio", "at most 1/3"), rows))


if __name__ == "__main__":
    main()

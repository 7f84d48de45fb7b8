"""What a matched call costs, graph excluded: `python -m benchmarks.overhead`.

The backend returns a constant, so what is left is finding the record, its guard and its mock. The
same backend under `torch.compile` runs in turn with it. Goal: at most a third of Dynamo's time.
"""

from collections.abc import Callable
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import Paired, machine, measure, seconds, table
from zoo import ZOO

GOAL = 1 / 3


def constant_backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Runs the graph once and returns that result from then on."""
    with torch.no_grad():
        result = gm(*inputs)
    return lambda *args: result


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Name to target, positional and keyword arguments."""
    found: dict[str, Any] = {"x*2+1": (lambda x: x * 2 + 1, (torch.ones(8),), {})}
    for name, title in (("ResNet-101", "ResNet-101"), ("BERT", "BERT-base")):
        model = ZOO[name].make(seed=0, size="real")
        found[title] = (model, *ZOO[name].inputs(model, seed=0, batch=1))
    return found


def compare(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rounds: int
) -> Paired:
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
    """Prints time per matched call, ours and Dynamo's, and their ratio."""
    rows = []
    for name, (target, args, kwargs) in programs().items():
        timing = compare(target, args, kwargs, rounds)
        ratio = timing.ratio("magpy", "dynamo")
        rows.append(
            (
                name,
                seconds(timing.median("magpy")),
                seconds(timing.median("dynamo")),
                f"{ratio:.2f}",
                "yes" if ratio <= GOAL else "no",
            )
        )
    print(f"Matched call with a backend that returns a constant ({machine()})\n")
    print(table(("program", "magpy", "dynamo", "ratio", "at most 1/3"), rows))


if __name__ == "__main__":
    main()

"""What capture costs, compilation excluded: `python -m benchmarks.capture`.

Times the first call with a backend that runs the graph as it is: for magpy_like the monitored
native run and the synthesis, for Dynamo its tracing and the first run. Every round captures
anew. Goal: no slower than Dynamo.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import Paired, machine, measure_once, seconds, table
from zoo import ZOO

MODELS = {"ResNet-101": "ResNet-101", "DenseNet-121": "DenseNet-121", "BERT-base": "BERT"}


def uncompiled(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return gm.forward


def compare(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rounds: int
) -> Paired:
    def prepare(reset: Callable[[], None], compiler: Callable[..., Any]) -> Callable[[], Any]:
        """Forgets all earlier captures, and returns the first call of a newly compiled model."""
        reset()
        return partial(compiler(model, backend=uncompiled), *args, **kwargs)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "magpy": partial(prepare, magpy.reset, magpy.compile),
        "dynamo": partial(prepare, torch.compiler.reset, torch.compile),
        "eager": lambda: partial(model, *args, **kwargs),
    }
    report = magpy.explain(model, *args, **kwargs)
    if report.graph_count != 1 or report.split_points:
        raise SystemExit(f"this program was not captured as one graph:\n{report}")
    measure_once(makers, rounds=1)  # imports and tables that are loaded on first use
    return measure_once(makers, rounds=rounds)


@click.command()
@click.option("--rounds", default=7, show_default=True, help="First calls per candidate.")
@click.option("--batch", default=1, show_default=True)
@torch.no_grad()
def main(rounds: int, batch: int) -> None:
    """Prints the time of the first call, ours and Dynamo's, and their ratio."""
    rows = []
    for title, name in MODELS.items():
        model = ZOO[name].make(seed=0, size="real")
        args, kwargs = ZOO[name].inputs(model, seed=0, batch=batch)
        timing = compare(model, args, kwargs, rounds)
        times = (seconds(timing.median(candidate)) for candidate in timing.samples)
        rows.append((title, *times, f"{timing.ratio('magpy', 'dynamo'):.2f}"))
    print(f"First call without compilation, batch {batch} ({machine()})\n")
    print(table(("program", *timing.samples, "magpy / dynamo"), rows))


if __name__ == "__main__":
    main()

"""Cost of capture without compilation: `python -m benchmarks.capture`.

Times the first call with a backend that runs the graph uncompiled: for magpy_like the monitored
native run and the synthesis, for Dynamo its tracing and the first run. Every round captures anew.
Goal: no slower than Dynamo.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import (
    PairedTiming,
    describe_machine,
    format_seconds,
    format_table,
    measure_once,
)
from zoo import ZOO

MODELS = {"ResNet-101": "ResNet-101", "DenseNet-121": "DenseNet-121", "BERT-base": "BERT"}


def return_forward(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return gm.forward


def time_first_calls(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rounds: int
) -> PairedTiming:
    def prepare(reset: Callable[[], None], compiler: Callable[..., Any]) -> Callable[[], Any]:
        """Discards all earlier captures and returns the first call of a newly compiled model."""
        reset()
        return partial(compiler(model, backend=return_forward), *args, **kwargs)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "magpy": partial(prepare, magpy.reset, magpy.compile),
        "dynamo": partial(prepare, torch.compiler.reset, torch.compile),
        "eager": lambda: partial(model, *args, **kwargs),
    }
    report = magpy.explain(model, *args, **kwargs)
    if report.graph_count != 1 or report.split_points:
        raise SystemExit(f"this program was not captured as one graph:\n{report}")
    measure_once(makers, rounds=1)  # warm up: imports and tables loaded on first use
    return measure_once(makers, rounds=rounds)


@click.command()
@click.option("--rounds", default=7, show_default=True, help="First calls per candidate.")
@click.option("--batch", default=1, show_default=True)
@torch.no_grad()
def main(rounds: int, batch: int) -> None:
    """Prints the time of the first call in magpy_like and in Dynamo, and their ratio."""
    rows = []
    for title, name in MODELS.items():
        model = ZOO[name].make(seed=0, size="real")
        args, kwargs = ZOO[name].inputs(model, seed=0, batch=batch)
        timing = time_first_calls(model, args, kwargs, rounds)
        times = (format_seconds(timing.median(candidate)) for candidate in timing.samples)
        rows.append((title, *times, f"{timing.ratio('magpy', 'dynamo'):.2f}"))
    print(f"First call without compilation, batch {batch} ({describe_machine()})\n")
    print(format_table(("program", *timing.samples, "magpy / dynamo"), rows))


if __name__ == "__main__":
    main()

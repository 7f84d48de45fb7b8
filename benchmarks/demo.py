"""Demonstration on one model of the zoo: captured graphs, correctness, speed (`make demo`)."""

import click
import torch

import magpy_like as magpy
from benchmarks.paired_timing import (
    describe_machine,
    format_seconds,
    format_table,
    measure,
    time_call,
)
from tests.compare import assert_same
from zoo import ZOO


@click.command()
@click.option("--model", "name", default="ResNet-18", show_default=True, type=click.Choice([*ZOO]))
@click.option("--batch", default=1, show_default=True)
@torch.no_grad()
def main(name: str, batch: int) -> None:
    """Compiles a model of the zoo, prints the captured graphs, and times it against eager mode."""
    entry = ZOO[name]
    model = entry.make(seed=0, size="real")
    args, kwargs = entry.inputs(model, seed=0, batch=batch)
    print(f"{name}, batch {batch} ({describe_machine()})\n")
    print(magpy.explain(model, *args, **kwargs))

    magpy.reset()
    fast = magpy.compile(model)
    first = time_call(lambda: fast(*args, **kwargs), 1)
    timing = measure(
        {"eager": lambda: model(*args, **kwargs), "compiled": lambda: fast(*args, **kwargs)},
        rounds=11,
        sample_seconds=0.2,
    )
    fresh_args, fresh_kwargs = entry.inputs(model, seed=1, batch=batch)
    assert_same(
        fast(*fresh_args, **fresh_kwargs), model(*fresh_args, **fresh_kwargs), rtol=1e-3, atol=1e-3
    )

    print("\nWith new inputs the compiled model returned the same results as eager mode.")
    print(magpy.cache_info(fast), "\n")
    rows = [
        ("first call", format_seconds(first), ""),
        ("eager", format_seconds(timing.median("eager")), "1.00"),
    ]
    speedup = f"{timing.ratio('eager', 'compiled'):.2f}"
    rows.append(("compiled", format_seconds(timing.median("compiled")), speedup))
    print(format_table(("", "time per call", "speed"), rows))


if __name__ == "__main__":
    main()

"""Cost by size of the program: `python -m benchmarks.scaling`.

Four tables: a matched call by number of modules, with a backend that returns a constant; the same
by number of records, which differ in an argument or a global name; and the first call by number of
operators, with a backend that runs the graph uncompiled. Goals: a matched call takes less than
0.1 µs per block of four modules, and as long for a thousand records as for ten; the time of a first
call is proportional to the operators.

Matched calls are timed by the process's own time: they wait for nothing.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import torch
from torch import nn

import magpy_like as magpy
from benchmarks.capture import return_forward
from benchmarks.overhead import constant_backend
from benchmarks.paired_timing import (
    PairedTiming,
    describe_machine,
    format_seconds,
    format_table,
    measure,
    measure_once,
)

WIDTH = 8
FACTOR = 0
STATEMENTS = ("x = x + 1", "x = x * y", "x = torch.sigmoid(x)", "x = x - y", "rest.append(x)")


class Block(nn.Module):
    """Four modules with four parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.activation = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.GELU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated: torch.Tensor = self.activation(self.linear(self.norm(x)))
        return x + activated


def scale(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x * factor


def scale_by_global(x: torch.Tensor, _: int) -> torch.Tensor:
    return x * FACTOR


def set_factor(factor: int) -> None:
    global FACTOR
    FACTOR = factor


def straight_line(operators: int) -> Callable[..., Any]:
    """Returns a function without loops that calls so many operators."""
    lines = [STATEMENTS[i % len(STATEMENTS)] for i in range(operators * 5 // 4)]
    source = "def program(x, y):\n    rest = []\n    " + "\n    ".join(lines) + "\n    return x\n"
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(source, f"<{operators} operators>", "exec"), namespace)
    program: Callable[..., Any] = namespace["program"]
    return program


def check_hits(compiled: Any, records: int) -> None:
    info = magpy.cache_info(compiled)
    if info.records != records or info.misses != records or not info.hits:
        raise SystemExit(f"the calls were not matched by {records} records: {info}")


def time_blocks(blocks: int, rounds: int, with_dynamo: bool) -> PairedTiming:
    """Times a matched call of a model of so many blocks."""
    torch.compiler.reset()
    magpy.reset()
    model, x = nn.Sequential(*(Block() for _ in range(blocks))), torch.ones(2, WIDTH)
    ours = magpy.compile(model, backend=constant_backend)
    candidates: dict[str, Callable[[], Any]] = {"magpy": partial(ours, x)}
    if with_dynamo:
        candidates["dynamo"] = partial(torch.compile(model, backend=constant_backend), x)
    timing = measure(candidates, rounds=rounds, clock=time.process_time)
    check_hits(ours, 1)
    return timing


def time_records(
    program: Callable[[torch.Tensor, int], torch.Tensor], records: int, rounds: int
) -> PairedTiming:
    """Times a matched call of a function with so many records."""
    magpy.reset()
    compiled = magpy.compile(
        program, backend=constant_backend, dynamic=False, options={"record_limit": records}
    )
    x = torch.ones(WIDTH)

    def call(factor: int) -> None:
        set_factor(factor)
        compiled(x, factor)

    def call_all() -> None:
        for factor in range(records):
            call(factor)

    def call_ends() -> None:
        call(0)
        call(records - 1)

    call_all()
    candidates: dict[str, Callable[[], Any]] = {
        "newest again": partial(call, records - 1),
        "oldest, newest": call_ends,
        "all in turn": call_all,
    }
    timing = measure(candidates, rounds=rounds, clock=time.process_time)
    check_hits(compiled, records)
    for name, calls in (("oldest, newest", 2), ("all in turn", records)):
        timing.samples[name] = [seconds / calls for seconds in timing.samples[name]]
    return timing


def time_first_call(operators: int, rounds: int, with_dynamo: bool) -> PairedTiming:
    """Times the first call of a straight line of so many operators."""
    x, y = torch.ones(WIDTH), torch.ones(WIDTH)

    def prepare(reset: Callable[[], None], compiler: Callable[..., Any]) -> Callable[[], Any]:
        reset()
        return partial(compiler(straight_line(operators), backend=return_forward), x, y)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "magpy": partial(prepare, magpy.reset, magpy.compile)
    }
    if with_dynamo:
        makers["dynamo"] = partial(prepare, torch.compiler.reset, torch.compile)
    return measure_once(makers, rounds=rounds)


def times(timing: PairedTiming) -> list[str]:
    """Returns the time of each candidate, and the ratio of the first two if one is Dynamo."""
    cells = [format_seconds(timing.median(name)) for name in timing.samples]
    if "dynamo" in timing.samples:
        return [*cells, f"{timing.ratio('magpy', 'dynamo'):.2f}"]
    return cells if len(cells) > 1 else [*cells, "–", "–"]


def per_unit(timing: PairedTiming, count: int) -> str:
    return format_seconds(timing.median("magpy") / count)


def parse(_: Any, __: Any, text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


@click.command()
@click.option("--rounds", default=15, show_default=True, help="Samples of each matched call.")
@click.option("--blocks", default="4,16,64,256", show_default=True, callback=parse)
@click.option("--records", default="1,10,100,1000", show_default=True, callback=parse)
@click.option("--operators", default="1000,3000,10000,30000", show_default=True, callback=parse)
@click.option(
    "--dynamo", default=3000, show_default=True, help="Operators, or 25 × blocks, up to which."
)
@torch.no_grad()
def main(
    rounds: int, blocks: list[int], records: list[int], operators: list[int], dynamo: int
) -> None:
    """Prints the time of matched calls and first calls by the size of the program."""
    print(f"Cost by size of the program ({describe_machine()})")
    columns = ("magpy", "dynamo", "ratio", "magpy each")
    if blocks:
        rows = [
            (str(n), *times(timing), per_unit(timing, n))
            for n in blocks
            for timing in [time_blocks(n, rounds, 25 * n <= dynamo)]
        ]
        print("\nMatched call\n")
        print(format_table(("blocks", *columns), rows))
    if records:
        for differ_in, program in (("argument", scale), ("global name", scale_by_global)):
            rows = [(str(n), *times(time_records(program, n, rounds))) for n in records]
            print(f"\nMatched call, records that differ in one {differ_in}\n")
            print(format_table(("records", "newest again", "oldest, newest", "all in turn"), rows))
    if operators:
        time_first_call(10, 1, True)  # warm up: imports and tables loaded on first use
        rows = [
            (str(n), *times(timing), per_unit(timing, n))
            for n in operators
            for timing in [time_first_call(n, 3, n <= dynamo)]
        ]
        print("\nFirst call without compilation\n")
        print(format_table(("operators", *columns), rows))


if __name__ == "__main__":
    main()

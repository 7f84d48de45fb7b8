"""``python -m tests.compiler.opinfo``: sweeps operators and prints differences from eager by cause.

With ``--coverage``: counts the operators that are lowered, decomposed or fall back to ATen, and
writes the list. With names, only their rows are rewritten.
"""

from __future__ import annotations

import collections
import re
import sys
import time
import warnings
from collections.abc import Sequence

import click
import torch

from magpy_like.compiler import compile_fx
from tests.compiler.opinfo import coverage
from tests.compiler.opinfo.harness import FORWARD_DTYPES, Problem, operators, sweep


@click.command()
@click.argument("names", nargs=-1)
@click.option("--limit", type=int, help="Samples per operator and dtype.")
@click.option("--dtype", "dtype_names", multiple=True, help="float32, ...; all by default.")
@click.option("--gradients", is_flag=True, help="Gradients, not forward.")
@click.option("--part", default="0/1", show_default=True, help="K/N: each N-th operator from K.")
@click.option("--coverage", "writes_coverage", is_flag=True, help="Write the list of operators.")
def main(
    names: Sequence[str], limit: int | None, dtype_names: Sequence[str], gradients: bool,
    part: str, writes_coverage: bool,
) -> None:  # fmt: skip
    """Sweeps the operators NAMES, all by default."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if writes_coverage:
        print(coverage.write(list(names)))
        return
    dtypes = [getattr(torch, name) for name in dtype_names] or list(FORWARD_DTYPES)
    if gradients:
        dtypes = [torch.float32]
    first, parts = map(int, part.split("/"))
    swept = (names or sorted(operators()))[first::parts]
    count, problems, begin = 0, [], time.time()
    for name in swept:
        op = operators()[name]
        ran, found = sweep(op, dtypes, compile_fx, gradient=gradients, limit=limit)
        count += ran
        problems += found
        for problem in found[:3]:
            print(problem, flush=True)
    print(f"\n{count} samples of {len(swept)} operators, {len(problems)} differ", end="")
    print(f", {time.time() - begin:.0f} s")
    print(by_cause(problems))
    sys.exit(bool(problems))


def by_cause(problems: list[Problem]) -> str:
    """Groups problems whose messages are equal up to numbers, most frequent first."""
    groups: dict[str, collections.Counter[str]] = {}
    for problem in problems:
        cause = re.sub(r"[-+]?[\d.]+(e[-+]?\d+)?|\([\d, ]*\)", "#", problem.message)[:110]
        where = f"{problem.op} {str(problem.dtype)[6:]}{' gradient' if problem.gradient else ''}"
        groups.setdefault(cause, collections.Counter())[where] += 1
    lines = []
    for cause, where in sorted(groups.items(), key=lambda item: -item[1].total()):
        lines.append(f"\n{where.total()} x {cause}")
        lines += [f"    {number:4} {name}" for name, number in where.most_common(12)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""``python -m tests.compiler.opinfo``: sweeps operators and prints differences from eager by cause.

With ``--coverage``: counts the operators that are lowered, decomposed or fall back to ATen, and
writes the list. With names, only their rows are rewritten.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import time
import warnings

import torch

from magpy_like.compiler import compile_fx
from tests.compiler.opinfo import coverage
from tests.compiler.opinfo.harness import FORWARD_DTYPES, Problem, operators, sweep


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.compiler.opinfo")
    parser.add_argument("names", nargs="*", help="operators; all by default")
    parser.add_argument("--limit", type=int, help="samples per operator and dtype")
    parser.add_argument("--dtype", action="append", help="float32, ...; all by default")
    parser.add_argument("--gradients", action="store_true", help="gradients, not forward")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th operator from the k-th")
    parser.add_argument("--coverage", action="store_true", help="write the list of operators")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.coverage:
        print(coverage.write(options.names))
        return
    dtypes = [getattr(torch, name) for name in options.dtype or ()] or list(FORWARD_DTYPES)
    part, parts = map(int, options.part.split("/"))
    names = (options.names or sorted(operators()))[part::parts]
    count, problems, begin = 0, [], time.time()
    for name in names:
        op = operators()[name]
        swept_dtypes = [torch.float32] if options.gradients else dtypes
        ran, found = sweep(
            op, swept_dtypes, compile_fx, gradient=options.gradients, limit=options.limit
        )
        count += ran
        problems += found
        for problem in found[:3]:
            print(problem, flush=True)
    print(f"\n{count} samples of {len(names)} operators, {len(problems)} differ", end="")
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


main()

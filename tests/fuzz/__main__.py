"""Tries the programs of many seeds, or shrinks one that fails.

    python -m tests.fuzz --backend eager --seeds 0:1000 --jobs 4 --out findings.jsonl
    python -m tests.fuzz --backend eager --shrink 17

With ``--out`` an interrupted sweep continues where it ended.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import click

from tests.fuzz.sweep import Journal, summary, sweep


@click.command()
@click.option("--backend", default="eager", show_default=True)
@click.option("--seeds", default="0:100", show_default=True, help="FIRST:LAST, without LAST.")
@click.option("--jobs", default=1, show_default=True, help="Processes at a time.")
@click.option("--time-limit", default=float("inf"), help="In seconds.")
@click.option("--out", type=click.Path(path_type=Path), help="A file of findings, one a line.")
@click.option("--shrink", type=int, metavar="SEED", help="Shrink this seed's program instead.")
def main(
    backend: str, seeds: str, jobs: int, time_limit: float, out: Path | None, shrink: int | None
) -> None:
    """Tries the programs of many seeds, or shrinks one that fails."""
    if shrink is not None:
        sys.exit(_shrink(shrink, backend))
    journal = Journal(out, backend)
    first, last = map(int, seeds.split(":"))
    left = [seed for seed in range(first, last) if seed not in journal.known]
    for found in sweep(backend, left, jobs, seconds=time_limit):
        journal.add(found)
        if found["failed"]:
            print(f"seed {found['seed']}: {found['kind']}: {found['detail'][:300]}", flush=True)
    results = [found for seed, found in journal.known.items() if first <= seed < last]
    print(summary(results))
    sys.exit(any(found["failed"] for found in results))


def _shrink(seed: int, backend: str) -> int:
    from tests.fuzz.generation import generate
    from tests.fuzz.shrinking import shrink
    from tests.fuzz.trials import check, failing_like, script

    warnings.simplefilter("ignore")
    program = generate(seed)
    verdict = check(program, backend)
    if not verdict.failed:
        print(f"seed {seed} does not fail: {verdict.kind}", file=sys.stderr)
        return 0
    print(script(shrink(program, failing_like(verdict, backend)), verdict, backend))
    return 1


if __name__ == "__main__":
    main()

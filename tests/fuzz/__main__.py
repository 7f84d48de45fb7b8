"""Tries the programs of many seeds, or shrinks one that fails.

    python -m tests.fuzz --backend eager --seeds 0:1000 --jobs 4 --out findings.jsonl
    python -m tests.fuzz --backend eager --shrink 17

With ``--out`` an interrupted sweep continues where it ended.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from tests.fuzz.sweep import Journal, summary, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--seeds", default="0:100", help="FIRST:LAST, the last one excluded")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="in seconds")
    parser.add_argument("--out", type=Path, help="a file of findings, one a line")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="shrink this seed's program")
    options = parser.parse_args()
    if options.shrink is not None:
        return _shrink(options.shrink, options.backend)
    journal = Journal(options.out, options.backend)
    first, last = map(int, options.seeds.split(":"))
    left = [seed for seed in range(first, last) if seed not in journal.known]
    for found in sweep(options.backend, left, options.jobs, seconds=options.time_limit):
        journal.add(found)
        if found["failed"]:
            print(f"seed {found['seed']}: {found['kind']}: {found['detail'][:300]}", flush=True)
    results = [found for seed, found in journal.known.items() if first <= seed < last]
    print(summary(results))
    return int(any(found["failed"] for found in results))


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
    sys.exit(main())

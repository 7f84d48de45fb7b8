"""The table of interruptions: `python -m tests.interrupts [--jobs J] [--case NAME] [--kind KIND]`.

Interrupts calls of each program at the chosen points, and counts the states left behind. Exits with
1 if there is one. `--every N` tries every N-th point instead of the chosen ones.
"""

from __future__ import annotations

import collections
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import click

from tests.interrupts.cases import CASES
from tests.interrupts.injection import CALLS, KINDS
from tests.interrupts.points import DEFINITION, representatives
from tests.interrupts.trials import points_of, run_trials


@click.command()
@click.option("--jobs", default=2, show_default=True, help="Processes at a time.")
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)))
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)))
@click.option("--call", "calls", multiple=True, type=click.Choice(CALLS))
@click.option("--every", default=0, help="Try every N-th point instead of the chosen ones.")
@click.option("--step", default=1, help="Try every N-th of the chosen points.")
@click.option("--chunk", default=200, show_default=True, help="Points that one process tries.")
def main(
    jobs: int,
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    calls: tuple[str, ...],
    every: int,
    step: int,
    chunk: int,
) -> None:
    """Prints, by program and interruption: points, places, tried, exceptions raised, those that
    CPython ignored, states left behind."""
    bad = 0
    cases = list(itertools.product(names or CASES, calls or CALLS))
    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(cases, pool.map(points_of, *zip(*cases, strict=True)), strict=True))
        print(f"every {every}-th point" if every else DEFINITION)
        chosen = {case: found[case][::every] for case in cases} if every else representatives(found)
        tasks = {
            (case, kind): [
                pool.submit(run_trials, case[0], kind, tried[::step][k : k + chunk], case[1])
                for k in range(0, len(tried[::step]), chunk)
            ]
            for (case, tried), kind in itertools.product(chosen.items(), kinds or KINDS)
        }
        columns = ("points", "places", "tried", "raised", "ignored", "left")
        print(f"{'program':32} {'call':6} {'kind':8}", *(f"{c:>7}" for c in columns), flush=True)
        for (case, kind), started in tasks.items():
            outcomes = {n: o for task in started for n, o in task.result().items()}
            raised = sum(o.fired for o in outcomes.values())
            ignored = sum(o.ignored for o in outcomes.values())
            left = sum(bool(o.wrong) for o in outcomes.values())
            bad += left
            places = len({point.place for point in found[case]})
            row = (len(found[case]), places, len(outcomes), raised, ignored, left)
            print(f"{case[0]:32} {case[1]:6} {kind:8}", *(f"{n:7}" for n in row), flush=True)
            what = collections.Counter(
                text.splitlines()[0] for o in outcomes.values() for text in o.wrong
            )
            for text, count in what.most_common(6):
                where = [n for n, o in outcomes.items() if any(text in t for t in o.wrong)]
                print(f"    {count} times, as at {where[0]}: {text}", flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()

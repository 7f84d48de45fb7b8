"""The table of interruptions: `python -m tests.interrupts [--step N] [--jobs J] [--case NAME]`.

Sends a signal at every N-th point of the first call of each program, and counts the states left
behind. Exits with 1 if there is one.
"""

from __future__ import annotations

import collections
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import click

from tests.interrupts.cases import CASES
from tests.interrupts.injection import SIGNALS
from tests.interrupts.trials import count_points, run_trials


@click.command()
@click.option("--step", default=1, show_default=True, help="Try every N-th point.")
@click.option("--jobs", default=2, show_default=True, help="Processes at a time.")
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)))
@click.option("--chunk", default=200, show_default=True, help="Points that one process tries.")
def main(step: int, jobs: int, names: tuple[str, ...], chunk: int) -> None:
    """Prints, by program and signal: points, tried, exceptions raised, states left behind."""
    bad = 0
    with ThreadPoolExecutor(jobs) as pool:
        chosen = names or tuple(CASES)
        totals = dict(zip(chosen, pool.map(count_points, chosen), strict=True))
        tasks = {
            (name, kind): [
                pool.submit(run_trials, name, kind, range(total)[k : k + chunk * step : step])
                for k in range(0, total, chunk * step)
            ]
            for (name, total), kind in itertools.product(totals.items(), SIGNALS)
        }
        print(f"{'program':32} {'signal':8} {'points':>8} {'tried':>8} {'raised':>8} {'left':>6}")
        for (name, kind), started in tasks.items():
            outcomes = {n: o for task in started for n, o in task.result().items()}
            raised = sum(o.fired for o in outcomes.values())
            left = sum(bool(o.wrong) for o in outcomes.values())
            bad += left
            row = f"{totals[name]:8} {len(outcomes):8} {raised:8} {left:6}"
            print(f"{name:32} {kind:8} {row}", flush=True)
            what = collections.Counter(
                text.splitlines()[0] for o in outcomes.values() for text in o.wrong
            )
            for text, count in what.most_common(6):
                where = [n for n, o in outcomes.items() if any(text in t for t in o.wrong)]
                print(f"    {count} times, as at point {where[0]}: {text}", flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()

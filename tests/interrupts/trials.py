"""Trials in a process of their own.

`python -m tests.interrupts.trials CASE SIGNAL FIRST STEP LAST` prints a line of JSON per trial,
``[point, fired, wrong]``; with SIGNAL ``-`` it prints the number of points.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from tests.interrupts.cases import CASES
from tests.interrupts.injection import Outcome, interrupt, points


def run_trials(
    case: str, signal: str, tried: Sequence[int], timeout: float = 600
) -> dict[int, Outcome]:
    """The outcomes at these points, an arithmetic sequence, tried in a new process.

    The point at which the process died or hung has an outcome as well, and the next ones none.
    """
    arguments = map(str, (tried[0], tried[1] - tried[0] if len(tried) > 1 else 1, tried[-1]))
    command = [sys.executable, "-m", "tests.interrupts.trials", case, signal, *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        lines, end = ended.stdout, f"the process died: {ended.stderr[-300:]}"
    except subprocess.TimeoutExpired as hung:
        lines, end = (hung.stdout or b"").decode(), "the process hung"
    outcomes = {}
    for line in lines.splitlines():
        point, fired, wrong = json.loads(line)
        outcomes[point] = Outcome(fired, wrong)
    missing = [point for point in tried if point not in outcomes]
    if missing:
        outcomes[missing[0]] = Outcome(True, [end])
    return outcomes


def count_points(case: str) -> int:
    """The number of points of a first call, counted in a new process."""
    command = [sys.executable, "-m", "tests.interrupts.trials", case, "-"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(case: str, signal: str, first: int = 0, step: int = 1, last: int = -1) -> None:
    points(CASES[case])  # imports and tables loaded on first use
    if signal == "-":
        print(points(CASES[case]))
    for point in range(first, last + 1, step):
        outcome = interrupt(CASES[case], point, signal)
        print(json.dumps([point, outcome.fired, outcome.wrong]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))

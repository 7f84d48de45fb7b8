"""Trials in processes of their own.

`python -m tests.interrupts.trials CASE CALL` prints the points of a call as JSON. With a KIND of
interruption it reads points from the standard input, and prints a line ``[fired, wrong, ignored]``
for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from tests.interrupts.cases import CASES
from tests.interrupts.injection import Outcome, interrupt, points
from tests.interrupts.points import Place, Point

_COMMAND = (sys.executable, "-m", "tests.interrupts.trials")


def points_of(case: str, call: str = "first") -> list[Point]:
    """The points of a call, counted in a new process."""
    ended = subprocess.run((*_COMMAND, case, call), capture_output=True, text=True, check=True)
    return _points(ended.stdout)


def _points(text: str) -> list[Point]:
    return [Point(Place(*place), *rest) for place, *rest in json.loads(text)]


def run_trials(
    case: str, kind: str, tried: Sequence[Point], call: str = "first", timeout: float = 900
) -> dict[Point, Outcome]:
    """The outcomes at these points, tried in a new process.

    The point at which the process died or hung has an outcome as well, and the next ones none.
    """
    command = (*_COMMAND, case, call, kind)
    given = json.dumps(tried)
    try:
        ended = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=timeout
        )
        lines, end = ended.stdout, f"the process died: {ended.stderr[-300:]}"
    except subprocess.TimeoutExpired as hung:
        lines, end = (hung.stdout or b"").decode(), "the process hung"
    found = [Outcome(*json.loads(line)) for line in lines.splitlines()]
    if len(found) < len(tried):
        found.append(Outcome(True, [end]))
    return dict(zip(tried, found, strict=False))


def main(case: str, call: str, kind: str = "") -> None:
    points(CASES[case], call)  # imports and tables loaded on first use
    points(CASES[case], call)
    if not kind:
        print(json.dumps(points(CASES[case], call)))
        return
    for point in _points(sys.stdin.read()):
        outcome = interrupt(CASES[case], point, kind, call)
        print(json.dumps([outcome.fired, outcome.wrong, outcome.ignored]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One pair of versions: its environment, the run of the tests, and its row of the table."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FIXED = ("torch", "triton")
"""What a version of torch decides, whatever ``constraints.txt`` says."""


class Pair(NamedTuple):
    """Versions of Python and torch, such as 3.12 and 2.14: the newest patch release is taken."""

    python: str
    torch: str


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a pair.

    ``failing`` names the tests that failed; ``obstacle`` states why none ran.
    """

    python: str
    torch: str
    passed: int = 0
    skipped: int = 0
    failing: tuple[str, ...] = ()
    seconds: float = 0.0
    obstacle: str = ""


def run(pair: Pair, folder: Path, jobs: int, tests: Sequence[str]) -> Row:
    """The row of a pair; read from ``folder`` if these tests were run for this commit."""
    kept = folder / f"{pair.python}-{pair.torch}.json"
    key = [_commit(), *tests]
    if kept.exists() and (found := json.loads(kept.read_text()))["key"] == key:
        return Row(**{**found["row"], "failing": tuple(found["row"]["failing"])})
    try:
        row = _run_tests(pair, _environment(pair, folder), folder, jobs, tests)
    except RuntimeError as error:
        return Row(*pair, obstacle=str(error))
    kept.write_text(json.dumps({"key": key, "row": dataclasses.asdict(row)}))
    return row


def _commit() -> str:
    """The commit of the checkout, and what differs from it."""
    outputs = []
    for command in (["git", "rev-parse", "HEAD"], ["git", "diff", "HEAD"]):
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        outputs.append(done.stdout.strip())
    return " ".join(outputs)


def _environment(pair: Pair, folder: Path) -> Path:
    """The interpreter of a fresh environment.

    Raises:
        RuntimeError: there is no such Python, or the installation failed.
    """
    python = shutil.which(f"python{pair.python}")
    if python is None:
        raise RuntimeError(f"there is no python{pair.python} on PATH")
    home = folder / f"{pair.python}-{pair.torch}"
    shutil.rmtree(home, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    constraints.write_text("".join(line for line in lines if line.split("=")[0] not in FIXED))
    _succeed([python, "-m", "venv", home])
    wanted = [f"torch=={pair.torch}.*", "--editable", f"{ROOT}[test,dev]"]
    _succeed([home / "bin/python", "-m", "pip", "install", "--constraint", constraints, *wanted])
    return home / "bin/python"


def _succeed(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = done.stdout.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError(f"`{' '.join(map(str, command))}` failed: {last[0]}")


def _run_tests(pair: Pair, python: Path, folder: Path, jobs: int, tests: Sequence[str]) -> Row:
    report = folder / f"{pair.python}-{pair.torch}.xml"
    options = ["-n", str(jobs), "--dist", "worksteal", "-q", f"--junitxml={report}"]
    start = time.monotonic()
    command = [python, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with exit status {done.returncode}")
    return read_report(report, pair, time.monotonic() - start)


def read_report(report: Path, pair: Pair, seconds: float) -> Row:
    """The row of a pair from pytest's JUnit report."""
    passed, skipped, failing = 0, 0, []
    for case in xml.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failing.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Row(*pair, passed, skipped, tuple(failing), seconds)


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table, and the failing tests of each below it."""
    lines = ["| Python | torch | passed | failed | skipped | minutes |", "|" + " --- |" * 6]
    notes = []
    for row in rows:
        counts = [row.passed, len(row.failing), row.skipped, f"{row.seconds / 60:.0f}"]
        if row.obstacle:
            counts = ["–", "–", "–", "–"]
            notes.append(f"Python {row.python}, torch {row.torch}: {row.obstacle}")
        notes += [f"Python {row.python}, torch {row.torch}: {name}" for name in row.failing]
        lines.append(f"| {' | '.join(map(str, (row.python, row.torch, *counts)))} |")
    return "\n".join([*lines, *([""] if notes else []), *notes])

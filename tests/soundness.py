"""Mutation test of guards: each check is forced to hold, and results must then differ from eager.

    python -m tests.soundness [paths of tests]

The sweep considers checks after a split and checks of lifted values, which vary between calls.
Each test runs unchanged first, and the checks that rejected a call are noted. The test then runs
again with one of these forced to hold: the check matters if the test now sees a result that differs
from eager. A kind of check that matters in no test is superfluous, or lacks a test. Finally, all
checks after one split, or all checks of one lifted value, are forced to hold together: a test that
still passes has rejected a call needlessly, or compares too little of the results.

A journal keeps the findings of each test, so an interrupted sweep continues from there. A change of
the sources starts a new sweep.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from magpy_like.synthesis.guard.conditions import Kind
from tests.conditions import Check, Run, noted
from tests.programs import Twins
from tests.seeding import seed

ROOT = Path(__file__).parent.parent
JOURNAL = Path(os.environ.get("SOUNDNESS_JOURNAL", ROOT / ".soundness.jsonl"))
SWEPT = (
    "control_flow",
    "splitting",
    "synthesis",
    "monitor",
    "records",
    "torch_interop",
    "refgraph",
    "hostile",
    "corpus",
)
"""The folders of tests that run programs under a monitor; the others test one component alone."""
ENOUGH = 2
"""Results that a kind of check must change before the sweep stops forcing it."""
MOST = 80
"""Maximum number of checks of one kind that are forced."""
MOST_IN_A_TEST = 25
"""Maximum number of splits and lifted values forced per test: generated programs have hundreds."""
_BOOKKEEPING = re.compile(
    r"hit|miss|cache_info|records|graphs|split|lifted|explain|guards|generalised|why|warns"
)
"""Words in assertions about records rather than results."""
_DEAD = "the interpreter crashed in it"
_OF_LIFTED_VALUES = {
    Kind.LIFTED_VALUE,
    Kind.LOWER_BOUND,
    Kind.UPPER_BOUND,
    Kind.SIZE_RANGE,
    Kind.SIZE_RELATION,
    Kind.SPECULATED_VALUE,
    Kind.EARLY_SPECULATED_VALUE,
}


def _is_of_lifted_value(check: Check) -> bool:
    return check.kinds[0] in _OF_LIFTED_VALUES


def _is_to_matter(check: Check) -> bool:
    """True if the check is after a split or concerns a lifted value."""
    return check.where == "after a split" or _is_of_lifted_value(check)


_call = Twins.call


def _call_any(twins: Twins, inputs: Any, **options: Any) -> Any:
    """Compares results only, regardless of hits and misses."""
    return _call(twins, inputs, **{**options, "hit": None})


@contextlib.contextmanager
def _noted(run: Run) -> Iterator[None]:
    with noted(run), mock.patch.object(Twins, "call", _call_any):
        yield


class _Endless(BaseException):
    """Raised in a test that exceeds its time limit."""


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _Endless

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _outcome(test: Callable[[], Any], run: Run, seconds: float = 600) -> tuple[str, str]:
    """Runs a test and classifies its outcome.

    Returns:
        ``right``; ``answer`` if the test saw a wrong result or exceeded the time limit;
        ``bookkeeping`` if an assertion about records failed. Second, the failing line.
    """
    seed(0)
    try:
        with (
            _within(seconds),
            _noted(run),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            test()
    except (Exception, pytest.fail.Exception) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        line = at.line or ""
        about_records = isinstance(error, AssertionError) and _BOOKKEEPING.search(line)
        return "bookkeeping" if about_records else "answer", f"{type(error).__name__}: {line}"
    except _Endless:
        return "answer", "it exceeds the time limit"
    return "right", ""


@dataclass
class Count:
    """Numbers of checks of one kind: made, failed (rejected a call), forced to hold, and those
    that then changed a result (mattered)."""

    made: int = 0
    failed: int = 0
    forced: int = 0
    mattered: int = 0
    example: str = ""
    seen: str = ""
    """The failure that a test saw when the check mattered."""


@dataclass
class Finding:
    """The findings of one test."""

    test: str
    why_not: str = ""
    """The reason why the test cannot be swept; empty if it can."""
    counts: dict[str, Count] = field(default_factory=lambda: collections.defaultdict(Count))
    together: int = 0
    """Number of splits and lifted values whose checks were forced to hold together."""
    implied: int = 0
    """Number of those whose calls were rejected by other checks as well."""
    idle: list[str] = field(default_factory=list)
    """Those without any effect: no result changed, no assertion about records failed, no record
    raised, and no graph received inputs that broke a promise."""
    broken: list[str] = field(default_factory=list)
    """Inputs of graphs that broke a promise although no check was forced."""

    def text(self) -> str:
        return json.dumps({**vars(self), "counts": {k: vars(c) for k, c in self.counts.items()}})

    @classmethod
    def of(cls, text: str) -> Finding:
        found = json.loads(text)
        counts = {kind: Count(**count) for kind, count in found.pop("counts").items()}
        return cls(**found, counts=counts)


class Report:
    def __init__(self, findings: list[Finding]) -> None:
        self.findings = [f for f in findings if f.counts]
        self.broken = [f for f in findings if f.broken]
        self.not_swept = [f for f in findings if f.why_not]
        self.counts: dict[str, Count] = collections.defaultdict(Count)
        for finding in self.findings:
            for kind, count in finding.counts.items():
                whole = self.counts[kind]
                for name in ("made", "failed", "forced", "mattered"):
                    setattr(whole, name, getattr(whole, name) + getattr(count, name))
                whole.example = whole.example or count.example
                whole.seen = whole.seen or count.seen

    def never_mattered(self) -> list[str]:
        """Kinds of checks that rejected calls, none of which had a different result."""
        return sorted(k for k, count in self.counts.items() if count.failed and not count.mattered)

    def never_failed(self) -> list[str]:
        """Kinds of checks that fail in no test."""
        return sorted(k for k, count in self.counts.items() if not count.failed)

    def text(self) -> str:
        rows = [
            f"{'made':>7} {'failed':>7} {'forced':>7} {'mattered':>8}  kind of check (an example)"
        ]
        for kind, count in sorted(self.counts.items()):
            numbers = f"{count.made:7} {count.failed:7} {count.forced:7} {count.mattered:8}"
            rows.append(f"{numbers}  {kind} ({count.example[:60]})")
        together = sum(finding.together for finding in self.findings)
        implied = sum(finding.implied for finding in self.findings)
        idle = sum(len(finding.idle) for finding in self.findings)
        rows.append(f"{len(self.findings)} tests with splits or lifted values")
        rows.append(f"{together} splits and lifted values rejected calls;")
        rows.append(f"the calls of {implied} of them were rejected by other checks as well;")
        rows.append(f"the calls of {idle} of them can be accepted without any test failing:")
        rows += [f"  {f.test}: {subject}" for f in self.findings for subject in f.idle]
        rows += ["graphs whose inputs broke a promise:"] if self.broken else []
        rows += [f"  {f.test}: {broken}" for f in self.broken for broken in f.broken]
        rows += ["tests that cannot be repeated:"] if self.not_swept else []
        rows += [f"  {f.test}: {f.why_not}" for f in self.not_swept]
        rows += ["kinds that fail in no test:", *(f"  {k}" for k in self.never_failed())]
        rows += ["kinds that never mattered:", *(f"  {k}" for k in self.never_mattered())]
        return "\n".join(rows)


def _read() -> list[Finding]:
    """Reads the findings of each test from the journal, without an incomplete last line. A test
    that crashed the interpreter is tried a second time."""
    lines = JOURNAL.read_text().splitlines(keepends=True)[1:]
    findings = [Finding.of(line) for line in lines if line.endswith("\n")]
    begun = collections.Counter(f.test for f in findings if f.why_not == _DEAD)
    last = {finding.test: finding for finding in findings}
    return [f for f in last.values() if f.why_not != _DEAD or begun[f.test] > 1]


def _write(finding: Finding) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(finding.text() + "\n")


_COMPLETE = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,  # if an interpreter crashed
    pytest.ExitCode.NO_TESTS_COLLECTED,
)


class Sweep:
    """The pytest plugin that runs each test under the sweep."""

    def __init__(self) -> None:
        findings = _read()
        self.done = {finding.test for finding in findings}
        self.counts = Report(findings).counts
        """Earlier findings, which may make further attempts for a kind unnecessary."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.done]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        if getattr(pyfuncitem.obj, "is_hypothesis_test", False):
            _write(Finding(pyfuncitem.nodeid, "it runs generated programs"))
            return True
        _write(Finding(pyfuncitem.nodeid, _DEAD))
        try:
            _write(self._sweep(pyfuncitem.nodeid, lambda: pyfuncitem.obj(**arguments)))
        except pytest.skip.Exception:
            _write(Finding(pyfuncitem.nodeid))
        return True

    def _sweep(self, name: str, test: Callable[[], Any]) -> Finding:
        finding, run, again = Finding(name), Run(), Run()
        begun = time.perf_counter()
        before, line = _outcome(test, run)
        seconds = 10 + 10 * (time.perf_counter() - begun)
        finding.broken = run.broken[:3]
        numbers = [n for n, check in enumerate(run.checks) if _is_to_matter(check)]
        if not numbers:
            return finding
        for number in numbers:
            check = run.checks[number]
            count = finding.counts[check.kind]
            count.made += 1
            count.failed += number in run.failed
            count.example = count.example or check.reason
        failed = [number for number in numbers if number in run.failed]
        if not failed:
            return finding
        after, line = _outcome(test, again)
        if "answer" in (before, after):
            finding.why_not = line or "its result differs in the second run"
        elif list(map(_form, run.checks)) != list(map(_form, again.checks)):
            finding.why_not = "its checks differ in the second run"
        else:
            force = functools.partial(_outcome, test, seconds=seconds)
            self._force(finding, force, run, [(n, run.checks[n]) for n in failed])
        return finding

    def _force(
        self,
        finding: Finding,
        outcome_of: Callable[[Run], tuple[str, str]],
        first: Run,
        failed: list[tuple[int, Check]],
    ) -> None:
        for number, check in failed:
            count, whole = finding.counts[check.kind], self.counts[check.kind]
            if whole.mattered >= ENOUGH or whole.forced >= MOST:
                continue
            outcome, line = outcome_of(Run(forced=[number]))
            matters = outcome == "answer"
            for each in (count, whole):
                each.forced += 1
                each.mattered += matters
            count.seen = count.seen or (line if matters else "")
        subjects = dict.fromkeys(_subject(check) for _, check in failed)
        for subject in list(subjects)[:MOST_IN_A_TEST]:
            finding.together += 1
            run = Run(forced=[subject])
            outcome, _ = outcome_of(run)
            if outcome != "right" or _misspeculations(run) > _misspeculations(first):
                continue
            if len(run.checks) >= len(first.checks):
                finding.implied += 1
            else:
                finding.idle.append(subject if isinstance(subject, str) else ": ".join(subject))


def _misspeculations(run: Run) -> int:
    """Number of records that raised, and of graphs whose inputs broke a promise."""
    return run.raised + len(run.broken)


def _form(check: Check) -> tuple[Any, ...]:
    """The properties of a check that are equal in the next run, unlike the addresses of objects."""
    return check.place, check.kinds


def _subject(check: Check) -> str | tuple[str, str]:
    """The group of checks forced together: all after a split, or one condition on lifted values."""
    return (check.place, check.reason) if _is_of_lifted_value(check) else check.place


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Sweep())


def sweep(*paths: str) -> Report:
    """Runs the tests at these paths under the sweep, except those that the journal has."""
    sources = hashlib.sha256()
    for place in ("magpy_like", "annotations", "tests"):
        for path in sorted((ROOT / place).rglob("*.*")):
            if path.suffix in (".py", ".cpp", ".yaml"):
                sources.update(path.read_bytes())
    title = f"{sources.hexdigest()}\n"
    if not JOURNAL.exists() or JOURNAL.open().readline() != title:
        JOURNAL.write_text(title)
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "tests.soundness", "-n", "2"]
    command = [sys.executable, "-m", "pytest", *options, "--dist", "worksteal", *paths]
    code = subprocess.run(command, cwd=ROOT).returncode
    if code not in _COMPLETE:
        sys.exit("The sweep was interrupted; start it again to continue.")
    return Report(_read())


def main(paths: list[str]) -> int:
    """Prints the report. Returns 0 if every kind of check that rejected a call mattered in some
    test, and the inputs of all graphs kept their promises."""
    report = sweep(*(paths or (f"tests/{place}" for place in SWEPT)))
    print(report.text())
    return int(bool(report.never_mattered() or report.broken) or not report.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

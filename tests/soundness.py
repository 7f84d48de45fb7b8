"""Which checks of guards matter: each is made to hold by force, and answers must differ from eager.

    python -m tests.soundness [paths of tests]

A check is looked at when it is behind a split, or about a value that is lifted: one that may be
another at each call. Every test runs as it is, and the checks that turned a call away in it are
noted. Then it runs again with one of these made to hold: it matters when the test then sees another
answer than eager's. A kind of check that never does in any test is superfluous, or lacks a test.
Last, all checks behind one split, or all that say something of one lifted value, are made to hold
together: a test that does not notice has turned a call away for nothing, or looks at too little of
what the call gives.

What was found in each test is kept in a journal, so a sweep that was interrupted goes on where it
was; one of other sources begins anew.
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
    "refgraph",
    "hostile",
    "corpus",
)
"""The folders of tests that run programs under a monitor; the others are about one part alone."""
ENOUGH = 2
"""Answers that a kind of check must have changed before it is tried no more."""
MOST = 80
"""Checks of one kind that are tried at most."""
MOST_IN_A_TEST = 25
"""Splits and lifted values of one test that are tried: one that generates programs has hundreds."""
_BOOKKEEPING = re.compile(
    r"hit|miss|cache_info|records|graphs|split|lifted|explain|guards|generalised|why|warns"
)
"""In assertions of tests that are about what was recorded, not about answers."""
_DEAD = "the interpreter has died in it"
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
    """Whether it is behind a split or about a lifted value."""
    return check.where == "behind a split" or _is_of_lifted_value(check)


_call = Twins.call


def _call_any(twins: Twins, inputs: Any, **options: Any) -> Any:
    """The answers count, not whether they come from a record."""
    return _call(twins, inputs, **{**options, "hit": None})


@contextlib.contextmanager
def _noted(run: Run) -> Iterator[None]:
    with noted(run), mock.patch.object(Twins, "call", _call_any):
        yield


class _Endless(BaseException):
    """A test takes much longer than it should."""


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
    """``right``, ``answer`` when the test has seen a wrong one or does not end within so many
    seconds, or ``bookkeeping``; and where."""
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
        return "answer", "it does not end"
    return "right", ""


@dataclass
class Count:
    """Of one kind of check: how many there were, turned a call away, were made to hold, and
    changed an answer then."""

    made: int = 0
    failed: int = 0
    forced: int = 0
    mattered: int = 0
    example: str = ""
    seen: str = ""
    """What a test saw when it mattered."""


@dataclass
class Finding:
    """What was found in one test."""

    test: str
    why_not: str = ""
    """Why it cannot be swept."""
    counts: dict[str, Count] = field(default_factory=lambda: collections.defaultdict(Count))
    together: int = 0
    """Splits and lifted values whose checks were made to hold together."""
    implied: int = 0
    """Those without which other checks have turned the same calls away."""
    idle: list[str] = field(default_factory=list)
    """Those for which nothing changed: no answer, no assertion about records, nor has a record
    raised or a graph been given what it was not promised."""
    broken: list[str] = field(default_factory=list)
    """What graphs were given that was not promised to them, with no check made to hold."""

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
        """Kinds of checks that turned calls away, none of which had another answer."""
        return sorted(k for k, count in self.counts.items() if count.failed and not count.mattered)

    def never_failed(self) -> list[str]:
        """Kinds of checks that no test makes fail."""
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
        rows.append(f"{together} splits and lifted values have turned calls away,")
        rows.append(f"{implied} of them calls that others would have turned away as well,")
        rows.append(f"{idle} of them calls for which no test notices that they were let in:")
        rows += [f"  {f.test}: {subject}" for f in self.findings for subject in f.idle]
        rows += ["graphs that were given what was not promised:"] if self.broken else []
        rows += [f"  {f.test}: {broken}" for f in self.broken for broken in f.broken]
        rows += ["tests that cannot be repeated:"] if self.not_swept else []
        rows += [f"  {f.test}: {f.why_not}" for f in self.not_swept]
        rows += ["kinds that no test makes fail:", *(f"  {k}" for k in self.never_failed())]
        rows += ["kinds that never mattered:", *(f"  {k}" for k in self.never_mattered())]
        return "\n".join(rows)


def _read() -> list[Finding]:
    """What the journal has of each test, without a last line that was cut off; a test that was
    begun is begun again once."""
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
    pytest.ExitCode.TESTS_FAILED,  # where an interpreter has died
    pytest.ExitCode.NO_TESTS_COLLECTED,
)


class Sweep:
    """The plugin for pytest."""

    def __init__(self) -> None:
        findings = _read()
        self.done = {finding.test for finding in findings}
        self.counts = Report(findings).counts
        """What was found before, by which a kind may need no further tries."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.done]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        if getattr(pyfuncitem.obj, "is_hypothesis_test", False):
            _write(Finding(pyfuncitem.nodeid, "it generates its programs"))
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
            finding.why_not = line or "its answer is another one the second time"
        elif list(map(_form, run.checks)) != list(map(_form, again.checks)):
            finding.why_not = "other checks are made the second time"
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
    """How often a record has raised, or a graph was given what it was not promised."""
    return run.raised + len(run.broken)


def _form(check: Check) -> tuple[Any, ...]:
    """What is the same in the next run, where objects lie elsewhere."""
    return check.place, check.kinds


def _subject(check: Check) -> str | tuple[str, str]:
    """What is made to hold together: all behind a split, or one sentence on lifted values."""
    return (check.place, check.reason) if _is_of_lifted_value(check) else check.place


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Sweep())


def sweep(*paths: str) -> Report:
    """Run the tests at these paths under the sweep, but for those that it has had before."""
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
        sys.exit("The sweep was interrupted; it goes on where it was.")
    return Report(_read())


def main(paths: list[str]) -> int:
    """Print what was found; 0 when every kind of check that turned a call away mattered somewhere,
    and all graphs were given what they were promised."""
    report = sweep(*(paths or (f"tests/{place}" for place in SWEPT)))
    print(report.text())
    return int(bool(report.never_mattered() or report.broken) or not report.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Which checks of guards matter: each is made to hold by force, and answers must differ from eager.

A plugin for pytest. It runs every test twice as it is, and notes which check turned a call away.
Then it runs the test again for each of these checks, with that one made to hold. A check matters
when the test then sees another answer than eager's. A kind of check that never does in any test is
superfluous, or lacks a test.

    python -m tests.soundness tests/dynamic/test_splits.py …
"""

from __future__ import annotations

import collections
import contextlib
import io
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch

from magpy_like.monitor.expressions import Size
from magpy_like.native import Watch
from magpy_like.records.dispatch import Dispatcher
from magpy_like.synthesis import guard, record
from magpy_like.synthesis.sizes import LARGEST
from tests.programs import Twins

ENOUGH = 2
"""Answers that a kind of check must have changed before it is tried no more."""
MOST = 80
"""Checks of one kind that are tried at most."""
_BOOKKEEPING = re.compile(
    r"hit|miss|cache_info|records|graphs|split|lifted|explain|guards|generalised|why|warns"
)
"""In assertions of tests that are about what was recorded, not about answers."""


@dataclass(frozen=True)
class Check:
    """One check of one guard; ``kind`` says which part of the guard builder has made it."""

    kind: str
    reason: str


@dataclass
class Run:
    """One run of a test, and the check that is made to hold in it."""

    forced: int | None = None
    checks: list[Check] = field(default_factory=list)
    failed: dict[int, None] = field(default_factory=dict)
    where: str = "at entry"

    def note(self, kind: str, reason: str) -> int:
        self.checks.append(Check(f"{self.where}, {kind}", reason))
        return len(self.checks) - 1


_run = Run()


class _Watch:
    """A watch that knows which of its checks fails, and has one hold by force."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Any]] = []
        self._why = ""

    def _add(self, kind: str, *args: Any) -> None:
        part = Watch()
        getattr(part, kind)(*args)
        number = _run.note(f"watched {kind} of {_caller()}", "")
        if number != _run.forced:
            self._parts.append((number, part))

    def place(self, *args: Any) -> None:
        self._add("place", *args)

    def type(self, *args: Any) -> None:
        self._add("type", *args)

    def tensor(self, *args: Any) -> None:
        self._add("tensor", *args)

    def size(self, *args: Any) -> None:
        self._add("size", *args)

    def counts(self) -> tuple[int, ...]:
        found = [part.counts() for _, part in self._parts]
        return tuple(map(sum, zip(*found, strict=True))) if found else Watch().counts()

    def why(self) -> str | None:
        return self._why

    def __call__(self) -> bool:
        for number, part in self._parts:
            if not part():
                _run.failed[number] = None
                self._why = part.why()
                return False
        return True


def _caller() -> str:
    """The function of the guard builder that makes a check, and its line there."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ or frame.f_code.co_name in ("_call", "_once"):
        frame = frame.f_back
    return f"{frame.f_code.co_name.strip('_')}:{frame.f_lineno}"


class _GuardBuilder(guard.GuardBuilder):
    """Numbers the checks, and leaves the forced one out."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.watch = _Watch()
        self.numbers: dict[int, int] = {}
        _numbers[id(self.reasons)] = self.reasons, self.numbers

    def _check(self, condition: str, reason: str) -> None:
        number = self.numbers[len(self.reasons)] = _run.note(_caller(), reason)
        super()._check("True" if number == _run.forced else condition, reason)

    def build(self) -> None:
        self.numbers[0] = number = _run.note("modes", "torch's modes")
        super().build()
        if number == _run.forced:
            self.source.names["state"] = lambda: True

    def _sizes(self, twin: Any) -> None:
        bounds, conditions = guard.size_guards(twin)
        for i, bound in enumerate(bounds):
            if not isinstance(bound.number, Size) or not bound.varies:
                continue  # a check of its own, or of the tensor as a whole
            number = _run.note("range of a size", f"{bound.least} to {bound.most}")
            _run.failed[number] = None  # that it has is not told: the tensor's check has
            if number == _run.forced:
                bounds[i] = bound._replace(least=0, most=LARGEST)
        with mock.patch.object(guard, "size_guards", lambda twin: (bounds, conditions)):
            super()._sizes(twin)


_numbers: dict[int, tuple[list[str], dict[int, int]]] = {}


class _MockBuilder(record.MockBuilder):
    """Numbers the values that are foretold, and takes the forced one for right."""

    def foretold(self) -> list[str]:
        conditions = super().foretold()
        for i, condition in enumerate(conditions):
            number = _run.note("foretold value", condition)
            if number == _run.forced:
                conditions[i] = "True"
                continue
            seen = self.source.constant(_see(number), "seen")
            conditions[i] = f"{seen}({condition})"
        return conditions


def _see(number: int) -> Callable[[bool], bool]:
    def seen(holds: bool) -> bool:
        if not holds:
            _run.failed[number] = None
        return holds

    return seen


_synthesise, _try, _call = Dispatcher.synthesise, Dispatcher._try, Twins.call


def _synthesise_noted(dispatcher: Dispatcher, *args: Any) -> Any:
    _run.where = "at entry" if dispatcher._is_program else "behind a split"
    return _synthesise(dispatcher, *args)


def _try_noted(dispatcher: Dispatcher, found: Any, args: Any, kwargs: Any) -> Any:
    result = _try(dispatcher, found, args, kwargs)
    numbers = _numbers.get(id(found.reasons), (None, {}))[1]
    if type(result) is int and result in numbers:
        _run.failed[numbers[result]] = None
    return result


def _call_any(twins: Twins, inputs: Any, **options: Any) -> Any:
    """The answers count, not whether they come from a record."""
    return _call(twins, inputs, **{**options, "hit": None})


@contextlib.contextmanager
def _noted(run: Run) -> Iterator[None]:
    """What is recorded meanwhile is numbered and forced as ``run`` says."""
    global _run
    before, _run = _run, run
    _numbers.clear()
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (record, "GuardBuilder", _GuardBuilder),
            (record, "MockBuilder", _MockBuilder),
            (Dispatcher, "synthesise", _synthesise_noted),
            (Dispatcher, "_try", _try_noted),
            (Twins, "call", _call_any),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
    _run = before


@dataclass
class Count:
    """Of one kind of check: how many there were, turned a call away, were made to hold, and
    changed an answer then."""

    made: int = 0
    failed: int = 0
    forced: int = 0
    mattered: int = 0
    example: str = ""


@dataclass
class Report:
    counts: dict[str, Count] = field(default_factory=lambda: collections.defaultdict(Count))
    repeated: int = 0
    not_repeatable: int = 0

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
        tests = f"{self.repeated} tests, and {self.not_repeatable} that cannot be repeated"
        return "\n".join([*rows, tests])


def _outcome(test: Callable[[], Any]) -> str:
    """``right``, ``answer`` when the test has seen a wrong one, or ``bookkeeping``."""
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            test()
    except (Exception, pytest.fail.Exception) as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line or ""
        about_records = isinstance(error, AssertionError) and _BOOKKEEPING.search(line)
        return "bookkeeping" if about_records else "answer"
    return "right"


class Sweep:
    """The plugin: runs each test again for every check that has turned a call away in it."""

    def __init__(self) -> None:
        self.report = Report()

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}

        def test() -> None:
            pyfuncitem.obj(**arguments)

        report, first, second = self.report, Run(), Run()
        with _noted(first):
            before = _outcome(test)
        with _noted(second):
            after = _outcome(test)
        if "answer" in (before, after) or first.checks != second.checks:
            report.not_repeatable += 1
            return True
        report.repeated += 1
        for number, check in enumerate(first.checks):
            count = report.counts[check.kind]
            count.made += 1
            count.example = count.example or check.reason
            if number not in first.failed:
                continue
            count.failed += 1
            if count.mattered >= ENOUGH or count.forced >= MOST:
                continue
            count.forced += 1
            with _noted(Run(forced=number)):
                count.mattered += _outcome(test) == "answer"
        return True


def sweep(*paths: str) -> Report:
    """Run the tests at these paths under the sweep."""
    plugin = Sweep()
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:warnings"]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*options, *paths], plugins=[plugin])
    return plugin.report


def main(paths: list[str]) -> int:
    """Print what was found; 0 when every part of guards matters that is to matter."""
    report = sweep(*paths)
    print(report.text())
    parts: dict[str, int] = collections.defaultdict(int)
    for kind, count in report.counts.items():
        parts[kind.partition(":")[0]] += count.mattered
    idle = [part for part, mattered in parts.items() if not mattered and _is_to_matter(part)]
    print("never mattered:", *report.never_mattered(), sep="\n  ")
    print("no test makes them fail:", *report.never_failed(), sep="\n  ")
    print("parts without a test:", *idle, sep="\n  ")
    return int(bool(idle) or not report.repeated)


_OF_LIFTED_VALUES = ("conditions", "bound", "sizes", "range of a size", "foretold value")
_TELLS_WHY = ("fetch",)
"""A fetch that finds nothing turns the call away as well; its check says why."""


def _is_to_matter(part: str) -> bool:
    where, _, name = part.partition(", ")
    if name.split()[-1] in _TELLS_WHY:
        return False
    return where == "behind a split" or name in _OF_LIFTED_VALUES


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

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

from tests.conditions import Run, noted
from tests.programs import Twins
from tests.seeding import seed

ENOUGH = 2
"""Answers that a kind of check must have changed before it is tried no more."""
MOST = 80
"""Checks of one kind that are tried at most."""
_BOOKKEEPING = re.compile(
    r"hit|miss|cache_info|records|graphs|split|lifted|explain|guards|generalised|why|warns"
)
"""In assertions of tests that are about what was recorded, not about answers."""


_call = Twins.call


def _call_any(twins: Twins, inputs: Any, **options: Any) -> Any:
    """The answers count, not whether they come from a record."""
    return _call(twins, inputs, **{**options, "hit": None})


@contextlib.contextmanager
def _noted(run: Run) -> Iterator[None]:
    with noted(run), mock.patch.object(Twins, "call", _call_any):
        yield


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
    seed(0)
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
            with _noted(Run(forced=[number])):
                count.mattered += _outcome(test) == "answer"
        return True


def sweep(*paths: str) -> Report:
    """Run the tests at these paths under the sweep."""
    plugin = Sweep()
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*options, *paths], plugins=[plugin])
    return plugin.report


def main(paths: list[str]) -> int:
    """Print what was found; 0 when every kind of condition matters that is to matter."""
    report = sweep(*paths)
    print(report.text())
    idle = [kind for kind in report.never_mattered() if _is_to_matter(kind)]
    print("never mattered:", *report.never_mattered(), sep="\n  ")
    print("no test makes them fail:", *report.never_failed(), sep="\n  ")
    print("are to matter:", *idle, sep="\n  ")
    return int(bool(idle) or not report.repeated)


NEVER_MATTERED = {
    "fetch: … has something left": "the type of what is left tells as well, unless it is `object`: "
    "the program `an_object_left` needs it",
    "contents: keys …(…), ordered_keys(before), label": "in tests that look keys up each key is "
    "asked for as well: the program `other_keys`, which goes through them, needs it",
}
"""Kinds that change no answer in the tests that are swept, and what needs them: see
:mod:`tests.dynamic.guarded`."""
_OF_LIFTED_VALUES = ("conditions", "bound", "sizes", "foretold")


def _is_to_matter(kind: str) -> bool:
    """Whether it is behind a split or about a lifted value."""
    where, _, name = kind.partition(", ")
    if name in NEVER_MATTERED:
        return False
    return where == "behind a split" or name.startswith(_OF_LIFTED_VALUES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

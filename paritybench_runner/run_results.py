"""Results of a run: files on disk, classes of tests and files, groups of failures.

`results.jsonl` has one line per file:

    {"file": "test_x.py", "seconds": 1.2, "import_error": "...", "tests": [
        {"index": 0, "module": "Net",
         "eager": {"class": "ok", "deterministic": true, "reads": ["test_x.py:12 item"], ...},
         "magpy": {"class": "one_graph", "graphs": 1, "splits": [], "hits": 2, ...}}]}

`run.json` holds the settings of the run.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

# From best to worst. "eager": nothing was captured, the program ran without the compiler.
CLASSES = ("one_graph", "split", "eager", "timeout", "crashed", "wrong")
NOT_RUNNABLE = "not_runnable"
# Settings that may differ when a run is resumed.
_RESUMABLE_LIMITS = ("timeout", "memory")
_RANK = {name: rank for rank, name in enumerate(CLASSES)}


class RunError(Exception):
    """A folder does not contain the expected run. The message names the remedy."""


@dataclasses.dataclass(frozen=True)
class Test:
    """Result of one test of one file in one compiler.

    Attributes:
        file: name of the file.
        module: name of the module class.
        klass: one of `CLASSES`, or `NOT_RUNNABLE`.
        dynamic: True if a tensor's value decides Python's control flow or reaches native code.
        detail: the compiler's results as in `results.jsonl`.
    """

    file: str
    module: str
    klass: str
    dynamic: bool
    detail: dict[str, Any]

    @property
    def unmatched(self) -> bool:
        """True if no later call was a hit, not even the repetition of the first call."""
        return self.detail.get("hits") == 0

    @property
    def failures(self) -> list["Failure"]:
        """The reasons why the test is not one graph."""
        if self.klass in ("one_graph", NOT_RUNNABLE):
            return []
        splits = [Failure(**split) for split in self.detail.get("splits", ())]
        error = Failure(self.detail.get("error", "no reason given"), self.detail.get("where", ""))
        return splits or [error]


@dataclasses.dataclass(frozen=True)
class Failure:
    """One reason why a test is not one graph.

    Attributes:
        detail: the message.
        where: file, line and function, if known.
        reason: name of its category; "" for errors and for compilers without categories.
        title: the category as a noun phrase.
    """

    detail: str
    where: str = ""
    reason: str = ""
    title: str = ""

    def heading(self, module: str) -> str:
        """Returns the heading under which equal failures are counted together.

        A typed reason is grouped by its title, a message by its text without the parts that vary
        between programs, such as the name of the module class, `module`.
        """
        return (
            self.title if self.reason else generalize_message(self.detail.replace(module, "Module"))
        )

    def __str__(self) -> str:
        return f"{self.detail} ({self.where})" if self.where else self.detail


def read_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns `run.json` and the complete lines of `results.jsonl` of a run.

    Raises:
        RunError: `folder` contains no run.
    """
    described = folder / "run.json"
    if not described.is_file():
        raise RunError(f"{folder} contains no run: run.json is missing")
    lines = []
    results = folder / "results.jsonl"
    if results.is_file():
        for line in results.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # the run was killed while writing this line
    return json.loads(described.read_text()), lines


class ResultsWriter:
    """Appends results to a new or resumed run in a folder.

    Attributes:
        done: results of the earlier part of a resumed run.

    Raises:
        RunError: the folder contains a run that must not be continued.
    """

    def __init__(self, folder: Path, run: dict[str, Any], resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.done: list[dict[str, Any]] = []
        if (folder / "run.json").is_file():
            before, self.done = read_run(folder)
            if not resume:
                raise RunError(
                    f"{folder} contains a run: pass --resume to continue it, or another --out"
                )
            changed = [k for k in run if k not in _RESUMABLE_LIMITS and run[k] != before.get(k)]
            if changed:
                raise RunError(
                    f"{folder} contains a run with another {', '.join(changed)}: to continue it, "
                    f"pass the settings in {folder / 'run.json'}"
                )
        elif (folder / "results.jsonl").is_file():
            raise RunError(
                f"{folder} contains results but no run.json with their settings: "
                "move them away, or pass another --out"
            )
        (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")
        # Rewritten: appending to an incomplete line would corrupt the next one.
        lines = [json.dumps(line) + "\n" for line in self.done]
        (folder / "results.jsonl").write_text("".join(lines))
        self._stream: TextIO = (folder / "results.jsonl").open("a")

    def append(self, result: dict[str, Any]) -> None:
        self._stream.write(json.dumps(result) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def iterate_tests(lines: Iterable[dict[str, Any]], compiler: str) -> Iterator[Test]:
    """Yields the results of all tests of a run in one compiler."""
    for line in lines:
        for test in line["tests"]:
            runnable = test["eager"]["class"] == "ok"
            detail = test.get(compiler, {}) if runnable else test["eager"]
            yield Test(
                line["file"],
                test["module"],
                detail["class"] if runnable else NOT_RUNNABLE,
                bool(test["eager"].get("reads")),
                detail,
            )


@dataclasses.dataclass(frozen=True)
class FileVerdict:
    """Result of one file, a case of MagPy's Table 3: the worst class of its tests."""

    file: str
    klass: str
    dynamic: bool


def classify_files(lines: Iterable[dict[str, Any]], compiler: str) -> list[FileVerdict]:
    """Returns the results of the files with a test that runs in eager mode."""
    by_file: dict[str, list[Test]] = collections.defaultdict(list)
    for test in iterate_tests(lines, compiler):
        if test.klass != NOT_RUNNABLE:
            by_file[test.file].append(test)
    return [
        FileVerdict(
            file, worst_class(test.klass for test in of_file), any(t.dynamic for t in of_file)
        )
        for file, of_file in by_file.items()
    ]


def worst_class(classes: Iterable[str]) -> str:
    """Returns the worst of some classes."""
    return max(classes, key=_RANK.__getitem__)


_VARIABLE_PARTS = (
    (re.compile(r"0x[0-9a-f]+"), "0x…"),
    (re.compile(r"(/[\w.+-]+)+/([\w.+-]+)"), r"\2"),
    (re.compile(r"test_\w+\.py"), "test_….py"),
    (re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?"), "N"),
)


def generalize_message(message: str) -> str:
    """Returns a message without numbers, addresses and file names, which vary between programs."""
    for pattern, replacement in _VARIABLE_PARTS:
        message = pattern.sub(replacement, message)
    return message[:160]


@dataclasses.dataclass(frozen=True)
class Group:
    """Tests that are not one graph for the same reason.

    Attributes:
        klass: class of the tests.
        reason: title of the reason, or the message without variable parts.
        tests: distinct tests, in the order of the run.
        example: detail and source line of the first failure.
    """

    klass: str
    reason: str
    tests: tuple[Test, ...]
    example: str


def group_failures(lines: Iterable[dict[str, Any]], compiler: str) -> list[Group]:
    """Returns failures by class and reason, the worst classes first, then the largest groups."""
    members: dict[tuple[str, str], dict[tuple[str, str], Test]] = {}
    examples: dict[tuple[str, str], str] = {}
    for test in iterate_tests(lines, compiler):
        for failure in test.failures:
            key = test.klass, failure.heading(test.module)
            members.setdefault(key, {})[test.file, test.module] = test
            examples.setdefault(key, str(failure))
    found = [
        Group(klass, reason, tuple(of_group.values()), examples[klass, reason])
        for (klass, reason), of_group in members.items()
    ]
    return sorted(found, key=lambda group: (-_RANK[group.klass], -len(group.tests)))

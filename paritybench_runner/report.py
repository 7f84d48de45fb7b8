"""Reports of a run: `summary.md`, `report.html`, and the comparison of two runs."""

import collections
import dataclasses
import functools
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from paritybench_runner import run_results
from paritybench_runner.run_results import CLASSES, NOT_RUNNABLE

_CLASS_TITLES = {
    "one_graph": "one graph",
    "split": "split",
    "eager": "ran eagerly",
    "timeout": "timed out",
    "crashed": "crashed",
    "wrong": "wrong",
    NOT_RUNNABLE: "not runnable in eager",
}
_MAX_GROUPS_IN_SUMMARY = 30

Lines = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Coverage:
    """A compiler's row of the paper's Table 3 (MagPy, section 8.3): cases are files.

    Attributes:
        cases: files with a test that runs in eager mode.
        static: cases where no tensor's value decides Python's control flow.
        whole: cases that became one graph in every test.
        failed: static cases that did not.
    """

    compiler: str
    cases: int
    static: int
    whole: int
    failed: int

    @property
    def fail_rate(self) -> float:
        """Share of the static cases that failed."""
        return self.failed / self.static if self.static else 0.0


def compute_coverage(lines: Lines, compiler: str) -> Coverage:
    """Returns a compiler's row of Table 3."""
    verdicts = run_results.classify_files(lines, compiler)
    static = [verdict for verdict in verdicts if not verdict.dynamic]
    return Coverage(
        compiler,
        len(verdicts),
        len(static),
        sum(verdict.klass == "one_graph" for verdict in verdicts),
        sum(verdict.klass != "one_graph" for verdict in static),
    )


def render_summary(run: dict[str, Any], lines: Lines) -> str:
    """Returns the text of `summary.md`.

    Args:
        run: contents of `run.json`.
        lines: results of the files.
    """
    compilers = run["compilers"]
    parts = ["# Coverage", _describe_run(run, lines)]
    parts += ["## Files (Table 3)", _render_coverage(lines, compilers), _COVERAGE_NOTE]
    parts += ["## Classes", _render_classes(lines, compilers)]
    parts += _describe_unmatched(lines, compilers)
    for compiler in compilers:
        parts += [f"## Reasons: {compiler}", _render_reasons(lines, compiler)]
    return "\n\n".join(parts) + "\n"


_COVERAGE_NOTE = (
    "A case is a file with a test that runs in eager mode; its worst test counts. It is static if "
    "no tensor's value decides Python's control flow or reaches native code. It fails unless every "
    "test became one graph."
)


def _render_coverage(lines: Lines, compilers: list[str]) -> str:
    rows = []
    for compiler in compilers:
        row = compute_coverage(lines, compiler)
        counts = (row.cases, row.static, row.failed, _format_percent(row.failed, row.static))
        rows.append((compiler, *counts, row.whole, _format_percent(row.whole, row.cases)))
    columns = ("Compiler", "Cases", "Static cases", "Failed static cases", "Fail rate")
    return _render_table((*columns, "One graph (all cases)", "of all cases"), rows)


def _render_classes(lines: Lines, compilers: list[str]) -> str:
    files = (run_results.classify_files(lines, compiler) for compiler in compilers)
    tests = (run_results.iterate_tests(lines, compiler) for compiler in compilers)
    by_file = [collections.Counter(file.klass for file in of_compiler) for of_compiler in files]
    by_test = [collections.Counter(test.klass for test in of_compiler) for of_compiler in tests]
    header = ("Class", *(f"{c}, {unit}" for unit in ("files", "tests") for c in compilers))
    rows = [
        (_CLASS_TITLES[klass], *(count[klass] for count in (*by_file, *by_test)))
        for klass in (*CLASSES, NOT_RUNNABLE)
    ]
    return _render_table(header, rows)


def _describe_unmatched(lines: Lines, compilers: list[str]) -> list[str]:
    """Returns a paragraph for each compiler with tests that no later call hit."""
    parts = []
    for compiler in compilers:
        unmatched = [t for t in run_results.iterate_tests(lines, compiler) if t.unmatched]
        if unmatched:
            first = unmatched[0]
            parts.append(
                f"{compiler}: in {len(unmatched)} tests no later call was a hit, not even the "
                f"repetition of the first call; for example, `{first.file}::{first.module}`."
            )
    return parts


def _describe_run(run: dict[str, Any], lines: Lines) -> str:
    imported = sum("import_error" not in line for line in lines)
    tests = [test for line in lines for test in line["tests"]]
    eager = [test["eager"] for test in tests if test["eager"]["class"] == "ok"]
    unstable = sum(not result["deterministic"] for result in eager)
    return (
        f"{len(lines)} of {run['files']} files run, {imported} imported; {len(tests)} tests, "
        f"{len(eager)} run in eager mode, {unstable} of them nondeterministically (their results "
        f"are not compared). Backend {run['backend']}, device {run['device']}, "
        f"{'training' if run['train'] else 'evaluation'} mode, torch {run['torch']}, "
        f"Python {run['python']}."
    )


def _render_reasons(lines: Lines, compiler: str) -> str:
    found = run_results.group_failures(lines, compiler)
    if not found:
        return "None: every test became one graph."
    rows = []
    for group in found[:_MAX_GROUPS_IN_SUMMARY]:
        dynamic = sum(test.dynamic for test in group.tests)
        first = group.tests[0]
        example = f"`{first.file}::{first.module}`"
        rows.append((_CLASS_TITLES[group.klass], len(group.tests), dynamic, group.reason, example))
    text = _render_table(("Class", "Tests", "Dynamic tests", "Reason", "Example"), rows)
    rest = found[_MAX_GROUPS_IN_SUMMARY:]
    if rest:
        count = sum(len(group.tests) for group in rest)
        text += f"\n\n{len(rest)} more reasons with {count} tests are in report.html."
    return text


def _format_percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _render_table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(header), *([_escape_cell(item) for item in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape_cell(item: Any) -> str:
    return str(item).replace("|", "\\|").replace("\n", " ")


def render_html(run: dict[str, Any], lines: Lines) -> str:
    """Returns the text of `report.html`: one file without references to the network."""
    tests = [
        {
            "file": test.file,
            "module": test.module,
            "compiler": compiler,
            "class": test.klass,
            "dynamic": test.dynamic,
            "graphs": test.detail.get("graphs"),
            "hits": test.detail.get("hits"),
            "first": test.detail.get("first_s"),
            "matched": test.detail.get("matched_s"),
            "why": "; ".join(dict.fromkeys(failure.detail for failure in test.failures))
            or test.detail.get("error", ""),
        }
        for compiler in run["compilers"]
        for test in run_results.iterate_tests(lines, compiler)
    ]
    groups = [
        {
            "compiler": compiler,
            "class": group.klass,
            "reason": group.reason,
            "count": len(group.tests),
            "dynamic": sum(test.dynamic for test in group.tests),
            "example": group.example,
            "command": format_command(run, compiler, group.tests[0]),
        }
        for compiler in run["compilers"]
        for group in run_results.group_failures(lines, compiler)
    ]
    template = _environment().get_template("report.html")
    return template.render(
        run=run,
        described=_describe_run(run, lines),
        compute_coverage=[compute_coverage(lines, compiler) for compiler in run["compilers"]],
        titles=_CLASS_TITLES,
        groups=groups,
        tests=tests,
    )


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["json"] = _json_in_html
    return environment


def _json_in_html(value: Any) -> str:
    # Escaped: `</script>` in a reason would end the script.
    import markupsafe

    return markupsafe.Markup(json.dumps(value).replace("<", "\\u003c"))


def format_command(run: dict[str, Any], compiler: str, test: run_results.Test) -> str:
    """Returns the command that reproduces the result of one test."""
    arguments = [
        *("--corpus", run["corpus"]),
        *("--filter", f"{test.file}::{test.module}"),
        *("--compilers", compiler),
        *("--backend", run["backend"]),
        *("--device", run["device"]),
        *(["--train"] if run["train"] else []),
        *("--timeout", f"{run['timeout']:g}", "--memory", f"{run['memory']:g}"),
        *("--out", f"repro/{Path(test.file).stem}-{test.module}"),
    ]
    return "python -m paritybench_runner " + shlex.join(arguments)


@dataclasses.dataclass(frozen=True)
class Change:
    """A test whose class differs between two runs."""

    compiler: str
    file: str
    module: str
    before: str
    after: str
    reason: str

    @property
    def worse(self) -> bool:
        """True if the class is further from one graph in the second run."""
        order = (NOT_RUNNABLE, *CLASSES)
        return self.before != NOT_RUNNABLE and (
            self.after == NOT_RUNNABLE or order.index(self.after) > order.index(self.before)
        )


def find_changes(before: Lines, after: Lines, compilers: Iterable[str]) -> list[Change]:
    """Returns the tests of both runs whose class differs, regressions first."""
    found = []
    for compiler in compilers:
        old, new = _by_test(before, compiler), _by_test(after, compiler)
        for key in sorted(old.keys() & new.keys()):
            was, now = old[key].klass, new[key].klass
            if was != now:
                reasons = "; ".join(failure.detail for failure in new[key].failures)
                found.append(Change(compiler, *key[:2], was, now, reasons))
    return sorted(found, key=lambda change: not change.worse)


def count_unshared_tests(before: Lines, after: Lines, compiler: str) -> tuple[int, int]:
    """Returns the numbers of tests in one run only, for each run; a run may be partial."""
    old, new = (_by_test(lines, compiler).keys() for lines in (before, after))
    return len(old - new), len(new - old)


def _by_test(lines: Lines, compiler: str) -> dict[tuple[str, str, int], run_results.Test]:
    # Names may repeat within a file: the n-th test of a name matches the n-th in the other run.
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    by_test = {}
    for test in run_results.iterate_tests(lines, compiler):
        seen[test.file, test.module] += 1
        by_test[test.file, test.module, seen[test.file, test.module]] = test
    return by_test


def render_comparison(changed: list[Change], unshared: tuple[int, int] = (0, 0)) -> str:
    """Returns the output of `compare`.

    Args:
        changed: as returned by :func:`find_changes`.
        unshared: as returned by :func:`count_unshared_tests`.
    """
    text = _render_changes(changed)
    note = "{} tests are in the first run only, {} in the second.".format(*unshared)
    return f"{text}\n\n{note}" if any(unshared) else text


def _render_changes(changed: list[Change]) -> str:
    if not changed:
        return "No test changed its class."
    moves = collections.Counter(
        (change.compiler, _CLASS_TITLES[change.before], _CLASS_TITLES[change.after], change.worse)
        for change in changed
    )
    totals = [
        (compiler, was, now, count, "worse" if worse else "")
        for (compiler, was, now, worse), count in moves.most_common()
    ]
    rows = [
        (
            *(change.compiler, f"{change.file}::{change.module}"),
            *(_CLASS_TITLES[change.before], _CLASS_TITLES[change.after], change.reason[:120]),
        )
        for change in changed
    ]
    return "\n\n".join(
        (
            _render_table(("Compiler", "Was", "Is", "Tests", ""), totals),
            _render_table(("Compiler", "Test", "Was", "Is", "Reason"), rows),
        )
    )

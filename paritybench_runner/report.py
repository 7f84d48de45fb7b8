"""What a run says to people: `summary.md`, `report.html`, and the difference of two runs."""

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
    """A row of the paper's Table 3 (MagPy, section 8.3): cases are files.

    Attributes:
        cases: files with a test that runs in eager mode.
        static: those of them where no tensor's value steers Python.
        whole: files that became one graph in every test.
        failed: static files that did not.
    """

    compiler: str
    cases: int
    static: int
    whole: int
    failed: int

    @property
    def fail_rate(self) -> float:
        """Failed among the static cases."""
        return self.failed / self.static if self.static else 0.0


def compute_coverage(lines: Lines, compiler: str) -> Coverage:
    """Table 3's row of a compiler."""
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
    """`summary.md`."""
    compilers = run["compilers"]
    parts = ["# Coverage", _describe_run(run, lines), "## Files (Table 3)"]
    rows = []
    for compiler in compilers:
        row = compute_coverage(lines, compiler)
        rows.append(
            (
                *(row.compiler, row.cases, row.static, row.failed),
                *(
                    _format_percent(row.failed, row.static),
                    row.whole,
                    _format_percent(row.whole, row.cases),
                ),
            )
        )
    columns = ("Compiler", "Cases", "Static cases", "Failed static cases", "Fail rate")
    parts.append(_render_table((*columns, "One graph (all cases)", "of all cases"), rows))
    parts.append(
        "A case is a file with a test that runs in eager mode, and counts by the worst of its "
        "tests. It is static when no tensor's value steers Python or reaches native code. It fails "
        "when not every test became one graph."
    )
    parts.append("## Classes")
    by_file = {
        c: collections.Counter(v.klass for v in run_results.classify_files(lines, c))
        for c in compilers
    }
    by_test = {
        c: collections.Counter(t.klass for t in run_results.iterate_tests(lines, c))
        for c in compilers
    }
    header = ("Class", *(f"{c}, {what}" for what in ("files", "tests") for c in compilers))
    parts.append(
        _render_table(
            header,
            [
                (
                    _CLASS_TITLES[klass],
                    *(count[c][klass] for count in (by_file, by_test) for c in compilers),
                )
                for klass in (*CLASSES, NOT_RUNNABLE)
            ],
        )
    )
    for compiler in compilers:
        unmatched = [t for t in run_results.iterate_tests(lines, compiler) if t.unmatched]
        if unmatched:
            first = unmatched[0]
            parts.append(
                f"{compiler}: in {len(unmatched)} tests no later call was a hit, not even the one "
                f"that repeats the first; `{first.file}::{first.module}` is one."
            )
    for compiler in compilers:
        parts += [f"## Reasons: {compiler}", _render_reasons(lines, compiler)]
    return "\n\n".join(parts) + "\n"


def _describe_run(run: dict[str, Any], lines: Lines) -> str:
    imported = sum("import_error" not in line for line in lines)
    tests = [test for line in lines for test in line["tests"]]
    eager = [test["eager"] for test in tests if test["eager"]["class"] == "ok"]
    unsure = sum(not result["deterministic"] for result in eager)
    return (
        f"{len(lines)} of {run['files']} files run, {imported} imported; {len(tests)} tests, "
        f"{len(eager)} run in eager mode, of which {unsure} are not deterministic (their results "
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
    text = _render_table(("Class", "Tests", "of these dynamic", "Reason", "Example"), rows)
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
    """`report.html`: one file without references to the network."""
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
    # `</script>` in a reason must not end the script.
    import markupsafe

    return markupsafe.Markup(json.dumps(value).replace("<", "\\u003c"))


def format_command(run: dict[str, Any], compiler: str, test: run_results.Test) -> str:
    """The command that runs one test again."""
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
    """A test whose class is another one than before."""

    compiler: str
    file: str
    module: str
    before: str
    after: str
    reason: str

    @property
    def worse(self) -> bool:
        """Whether the class is further from one graph than it was."""
        order = (NOT_RUNNABLE, *CLASSES)
        return self.before != NOT_RUNNABLE and (
            self.after == NOT_RUNNABLE or order.index(self.after) > order.index(self.before)
        )


def find_changes(before: Lines, after: Lines, compilers: Iterable[str]) -> list[Change]:
    """The tests that are in both runs and changed their class, regressions first."""
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
    """How many tests are in the first run only, and how many in the second: one may be partial."""
    old, new = (_by_test(lines, compiler).keys() for lines in (before, after))
    return len(old - new), len(new - old)


def _by_test(lines: Lines, compiler: str) -> dict[tuple[str, str, int], run_results.Test]:
    # Names may repeat within a file; the n-th of a name is the n-th of it in the other run.
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    by_test = {}
    for test in run_results.iterate_tests(lines, compiler):
        seen[test.file, test.module] += 1
        by_test[test.file, test.module, seen[test.file, test.module]] = test
    return by_test


def render_comparison(changed: list[Change], alone: tuple[int, int] = (0, 0)) -> str:
    """`compare`'s output; ``alone`` as :func:`count_unshared_tests` gives it."""
    left_out = "{} tests are in the first run only, {} in the second.".format(*alone)
    told = _render_changes(changed)
    return f"{told}\n\n{left_out}" if any(alone) else told


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

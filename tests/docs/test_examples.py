"""The Python of README.md and docs/ runs as written and prints what the text shows.

The blocks of a page share one namespace. A comment after ``print(...)`` is its expected line. A
``text`` block that follows a ``python`` block is all that this block prints and logs; ``…`` stands
for any characters, and alone on a line for any lines. A comment `<!-- needs: … -->` before a block
names libraries without which it does not run.
"""

import contextlib
import importlib.util
import io
import re
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

import magpy_like as magpy
from magpy_like import logs

ROOT = Path(__file__).parents[2]
_GENERATED = ROOT / "docs" / "architecture.md"
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if p != _GENERATED),
]
PRINTED = re.compile(r"^\s*print\(.*\)\s+# (.*)$", re.MULTILINE)
NEEDS = re.compile(r"<!-- needs: (.*) -->\n$")
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    line: int
    """Where the code begins in its page, from 1."""
    code: str
    output: str | None
    """Everything that it prints, or None where comments show the lines."""
    needs: tuple[str, ...] = ()
    """Libraries that it imports, and that may be missing."""

    @property
    def can_run(self) -> bool:
        return all(importlib.util.find_spec(library) for library in self.needs)


def examples(page: Path) -> list[Example]:
    text = page.read_text()
    found, end = [], 0
    for block in FENCED.finditer(text):
        if block[1] == "python":
            needs = NEEDS.search(text, 0, block.start())
            libraries = tuple(needs[1].split(", ")) if needs else ()
            found.append(
                Example(text.count("\n", 0, block.start(2)) + 1, block[2], None, libraries)
            )
        elif block[1] == "text" and found and text[end : block.start()].strip() == "":
            found[-1] = found[-1]._replace(output=block[2])
        end = block.end()
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _print_warning(message, category, *place):
    print(f"{category.__name__}: {message}")


def matches(shown: str, printed: str) -> bool:
    lines = (
        ".*" if line == "…" else re.escape(line).replace("…", ".*") for line in shown.split("\n")
    )
    pattern = "\n".join(lines).replace("\n.*\n", "\n(.*\n)*")
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=name)
def test_examples_print_the_shown_output(page: Path, monkeypatch):
    monkeypatch.chdir(ROOT)
    magpy.reset()
    monkeypatch.setattr(warnings, "showwarning", _print_warning)
    names = {}
    for line, code, output, _ in filter(lambda example: example.can_run, examples(page)):
        printed = io.StringIO()
        source = "\n" * (line - 1) + code  # locations in messages are those of the page
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            exec(compile(source, name(page), "exec"), names)
        if output is not None:
            assert matches(output, printed.getvalue()), printed.getvalue()
        else:
            expected = PRINTED.findall(code)
            assert printed.getvalue().splitlines()[: len(expected)] == expected


def test_every_page_of_the_guide_has_an_example():
    for page in (ROOT / "docs" / "guide").glob("*.md"):
        assert any(PRINTED.search(example.code) or example.output for example in examples(page))


@pytest.fixture(autouse=True)
def _silent_logs():
    yield
    logs.configure("")


def test_the_debugging_page_names_every_log_topic():
    text = (ROOT / "docs" / "debugging.md").read_text()
    named = set(",".join(re.findall(r"`MAGPY_LOGS=([\w,]+)`", text)).split(","))
    assert named == set(logs.TOPICS)


def test_an_output_that_differs_does_not_match():
    assert matches("a …\nb\n", "a 1\nb\n") and matches("a\n…\nb\n", "a\n1\n2\nb\n")
    assert not matches("a …\nb\n", "a 1\nc\n") and not matches("a\n", "a\nb\n")

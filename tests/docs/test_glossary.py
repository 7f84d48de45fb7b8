"""The glossary's modules exist, its page shows its table, and retired words stay retired."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line.split("\t") for line in (ROOT / "docs" / "glossary.tsv").read_text().splitlines() if line
]
RETIRED = re.compile(r"foretell|foretold|surprises|\bstretch(es)?\b|\bSettle|\bMeetings\b")
"""Words of an earlier private vocabulary, which have entries under the field's names now."""


def test_every_entry_has_word_sentence_source_and_module():
    for row in ROWS:
        assert len(row) == 4 and all(row), row
        assert row[1].endswith("."), row


@pytest.mark.parametrize("module", sorted({row[3] for row in ROWS}))
def test_modules_of_the_glossary_exist(module):
    assert importlib.util.find_spec(module) is not None


def test_the_page_is_made_from_the_table():
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = sorted(ROWS, key=lambda row: row[0].lower())
    shown = [
        line.split(" | ")[0].removeprefix("| **").removesuffix("**")
        for line in page.splitlines()
        if line.startswith("| **")
    ]
    assert shown == [row[0] for row in words]


def test_retired_words_are_used_nowhere():
    folders = ("magpy_like", "paritybench_runner", "benchmarks", "zoo", "docs")
    files = [
        f for d in folders for f in (ROOT / d).rglob("*") if f.suffix in (".py", ".md", ".yaml")
    ]
    found = [
        f"{f.relative_to(ROOT)}: {m[0]}" for f in files for m in RETIRED.finditer(f.read_text())
    ]
    assert not found

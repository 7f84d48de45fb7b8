"""The architecture page shows what the program really gives, and names modules that exist."""

import re
from pathlib import Path

import pytest

from docs import outputs

ROOT = Path(__file__).parents[2]


VERSIONS = pytest.mark.skipif(
    not outputs.is_shown_here(), reason="the page shows bytecode and graphs of other versions"
)


@pytest.fixture(scope="module")
def stages():
    return outputs.follow()


def test_every_stage_can_be_followed_on_any_version(stages):
    assert all(text.strip() for _, text in stages.values())


@VERSIONS
def test_the_shown_outputs_are_those_of_the_program(stages):
    shown = outputs.PAGE.read_text()
    assert outputs.page(stages) == shown, "stale: run `make outputs`"
    assert {*outputs._MARKED.findall(shown)} == stages.keys() - {"dot"}, "a stage is not shown"


@VERSIONS
def test_the_picture_is_drawn_from_the_refgraph(stages):
    drawn = outputs.PICTURE.read_text()
    assert outputs.digest(stages["dot"][1]) in drawn, "stale: run `make outputs` with Graphviz"


def test_the_glossary_is_made_from_its_table():
    assert outputs.glossary() == outputs.GLOSSARY.read_text(), "stale: run `make outputs`"


@pytest.mark.parametrize("page", ["architecture", "debugging", "limitations", "annotations"])
def test_named_files_exist(page):
    text = (ROOT / "docs" / f"{page}.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:magpy_like|tests|annotations|benchmarks)/[\w./]*)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


@VERSIONS
def test_a_stale_page_is_noticed(stages):
    changed = {**stages, "guard": ("python", "def guard(args, kwargs): return ()")}
    assert outputs.page(changed) != outputs.PAGE.read_text()

"""Split reasons and split points: use, titles, remedies and texts."""

import string
from pathlib import Path

import pytest

import magpy_like as magpy
from magpy_like.split_points import SplitPoint, source_location
from magpy_like.split_reasons import SplitCause, SplitReason

ROOT = Path(magpy.__file__).parent


@pytest.fixture(scope="module")
def sources() -> str:
    files = [*ROOT.rglob("*.py"), *(ROOT.parent / "annotations").glob("*.yaml")]
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("reason", SplitReason, ids=lambda reason: reason.name)
def test_every_reason_is_used(reason, sources):
    assert f"SplitReason.{reason.name}" in sources or f"reason: {reason.name}," in sources


@pytest.mark.parametrize("reason", SplitReason, ids=lambda reason: reason.name)
def test_remedies_refer_to_the_subject_only(reason):
    fields = {field for _, field, _, _ in string.Formatter().parse(reason.remedy)}
    assert fields <= {None, "subject"}
    assert "{" not in SplitCause(reason, "calls f", "f").remedy


def test_titles_are_distinct():
    assert len({reason.title for reason in SplitReason}) == len(SplitReason)


def test_text_of_a_split_point_has_location_and_detail():
    cause = SplitCause(SplitReason.DISABLED_FUNCTION, "calls f, which is disabled", "f")
    point = SplitPoint("program", "a.py", 3, *cause)
    assert str(point) == "a.py:3 in program: calls f, which is disabled"
    assert point.cause == cause
    assert cause.remedy == (
        "take magpy_like.disable off f, or torch.compiler.disable, if a record may contain it"
    )


def test_source_location_has_file_line_and_function():
    import sys

    location = source_location(sys._getframe())
    assert location.startswith(f"{__file__}:") and location.endswith(
        "in test_source_location_has_file_line_and_function"
    )

"""The README's Python runs as written, and prints what its comments say."""

import contextlib
import io
import re
from pathlib import Path

import magpy_like as magpy
from magpy_like import logs

README = (Path(__file__).parent.parent / "README.md").read_text()
PRINTED = re.compile(r"^print\(.*\)\s+# (.*)$", re.MULTILINE)


def test_the_examples_print_what_they_say():
    magpy.reset()
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 14
    names = {}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "README.md", "exec"), names)
        lines = printed.getvalue().splitlines()
        expected = PRINTED.findall(block)
        assert expected
        assert lines[: len(expected)] == expected


def test_every_log_topic_is_named():
    named = set(",".join(re.findall(r"`MAGPY_LOGS=([\w,]+)`", README)).split(","))
    assert named == set(logs.TOPICS)

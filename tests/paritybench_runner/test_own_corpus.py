"""The project's own corpus in the runner: one program per Python feature found in real programs."""

import functools
import sys
from pathlib import Path

import pytest

from paritybench_runner import corpus
from paritybench_runner.worker import EAGER, Job, run_file

FOLDER = Path(__file__).parents[1] / "corpus"
TESTS = [
    (path.name, case.module) for path in corpus.discover(FOLDER) for case in corpus.load_cases(path)
]


@functools.cache
def results(file):
    """The runner's results by module and step."""
    found, modules = {}, {}
    for event in run_file(Job(str(FOLDER / file), ("magpy",))):
        if event.kind == "done" and event.index < 0:
            modules = dict(event.result["tests"])
        elif event.kind == "done":
            found.setdefault(modules[event.index], {})[event.step] = event.result
    return found


def is_dynamic(file, module):
    source = sys.modules[Path(file).stem]
    return module in [cls.__name__ for cls in getattr(source, "DYNAMIC", ())]


@pytest.mark.parametrize("file, module", TESTS)
def test_program_is_deterministic_in_eager(file, module):
    found = results(file)[module][EAGER]
    assert found["class"] == "ok", found
    assert found["deterministic"], found
    assert bool(found["reads"]) == is_dynamic(file, module), found


@pytest.mark.parametrize("file, module", TESTS)
def test_compiled_program_equals_eager(file, module):
    found = results(file)[module]["magpy"]
    assert found["class"] in ("one_graph", "split", "eager"), found


@pytest.mark.parametrize("file, module", [test for test in TESTS if not is_dynamic(*test)])
def test_static_program_is_one_graph(file, module):
    found = results(file)[module]["magpy"]
    assert found["class"] == "one_graph", found
    assert found["hits"] > 0, found

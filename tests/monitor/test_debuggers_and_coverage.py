"""Debuggers and coverage tools in the caller of a compiled function: they work as without it."""

import io
import json
import os
import pdb
import subprocess
import sys
from pathlib import Path

import pytest

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor

ROOT = Path(__file__).parents[2]
HAS_MONITORING = sys.version_info >= (3, 12)


def helper(x):
    return x + 1


def program(x, log):
    log.append("seen")
    return helper(x) * 2


def session(function, commands):
    """The result of a function under pdb with these commands, and the output of pdb."""
    output = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("\n".join([*commands, "c", "c", "c", ""])), stdout=output)
    debugger.use_rawinput = False
    result = debugger.runcall(function)
    return result, output.getvalue()


def test_pdb_steps_over_compiled_calls_and_shows_results():
    fast, log = magpy.compile(program, backend="eager"), []

    def caller():
        first = fast(tensor(1), log)
        second = fast(tensor(2), log)
        return first + second

    result, output = session(caller, ["n", "n", "p first.item()", "n", "p second.item(), log"])
    assert_same(result, tensor(10))
    assert "\n(Pdb) 4.0\n" in output
    assert "\n(Pdb) (6.0, ['seen', 'seen'])\n" in output
    assert magpy.cache_info(fast) == magpy.CacheInfo(hits=1, misses=1, records=1, graphs=1)
    assert sys.gettrace() is None


def test_breakpoint_in_a_function_that_the_program_shares_stops():
    fast, log = magpy.compile(program, backend="eager"), []
    fast(tensor(1), log)

    def caller():
        fast(tensor(2), log)
        return helper(tensor(4))

    line = helper.__code__.co_firstlineno + 1
    result, output = session(caller, [f"b {__file__}:{line}", "c", "p 'stopped', x.item()"])
    assert_same(result, tensor(5))
    assert "('stopped', 4.0)" in output
    assert magpy.cache_info(fast).hits == 1


def check_events_of_native_runs_and_after_a_monitored_run(event):
    magpy.compile(program, backend="eager")(tensor(1), [])  # before the tool is registered
    seen = []
    tool, events = sys.monitoring.COVERAGE_ID, sys.monitoring.events
    sys.monitoring.use_tool_id(tool, "test")
    try:
        chosen = getattr(events, event)
        sys.monitoring.register_callback(tool, chosen, lambda code, *_: seen.append(code))
        sys.monitoring.set_events(tool, chosen)
        fast, log = magpy.compile(program, backend="eager"), []
        for i in range(3):
            assert_same(fast(tensor(i), log), (tensor(i) + 1) * 2)
        assert program.__code__ in seen, "the monitored run is the program's own"
        assert helper.__code__ in seen
        assert magpy.cache_info(fast).hits == 2
        seen.clear()
        helper(tensor(1))
        assert helper.__code__ in seen
        assert sys.monitoring.get_tool(tool) == "test"
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    assert log == ["seen"] * 3


if HAS_MONITORING:

    @pytest.mark.parametrize("event", ["LINE", "PY_START", "INSTRUCTION"])
    def test_sys_monitoring_tool_receives_events_of_native_runs_and_after_a_monitored_run(event):
        check_events_of_native_runs_and_after_a_monitored_run(event)


SCRIPT = """
import torch
import magpy_like as magpy

def helper(x):
    return x + 1

def program(x, log):
    log.append("seen")
    return helper(x) * 2

def caller():
    fast, log = magpy.compile(program, backend="eager"), []
    for i in range(3):
        assert torch.equal(fast(torch.ones(2) * i, log), (torch.ones(2) * i + 1) * 2)
    assert magpy.cache_info(fast).hits == 2
    assert log == ["seen"] * 3
    return helper(torch.ones(1))

caller()
"""


@pytest.mark.full
@pytest.mark.parametrize("core", ["ctrace", "pytrace", *(["sysmon"] if HAS_MONITORING else [])])
def test_coverage_counts_the_lines_around_compiled_calls(core, tmp_path):
    """Installs coverage.py into a temporary folder."""
    site, script = tmp_path / "site", tmp_path / "script.py"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site), "coverage"]
    subprocess.run(pip, check=True)
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "COVERAGE_CORE": core,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
    }

    def coverage(*arguments):
        command = [sys.executable, "-m", "coverage", *arguments]
        subprocess.run(command, check=True, cwd=tmp_path, env=environment)

    coverage("run", f"--include={script}", str(script))
    coverage("json", "-o", "report.json")
    (file,) = json.loads((tmp_path / "report.json").read_text())["files"].values()
    lines = SCRIPT.splitlines()
    # Trace functions receive no events of a monitored run, and a hit runs none of the program.
    inside = range(lines.index("def program(x, log):") + 2, lines.index("def caller():") + 1)
    assert set(file["missing_lines"]) <= set(inside)
    assert core != "sysmon" or not file["missing_lines"]

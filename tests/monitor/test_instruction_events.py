"""Events of instructions: no other frame of the same code takes them from a recording."""

import json
import subprocess
import sys
import threading

import pytest
import torch

import magpy_like as magpy
from tests.programs import tensor

IS_TOOL = sys.version_info >= (3, 13)


def steps(x, n):
    for i in range(n):
        x = (x * i + 1).relu()
    return x


def test_threads_that_run_the_same_code_do_not_disturb_a_recording():
    over = threading.Event()

    def run():
        while not over.is_set():
            steps(torch.zeros(1), 3)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for offset in range(10):
            fast = magpy.compile(lambda x, offset=offset: steps(x, 4) + offset)
            for value in (1.0, 2.0, 3.0):
                assert torch.equal(fast(tensor(value)), steps(tensor(value), 4) + offset)
            assert magpy.cache_info(fast).hits == 2
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_recursive_function_is_recorded_in_all_its_frames():
    def power(x, n):
        return x * power(x, n - 1) if n else x.cos()

    fast = magpy.compile(power)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(fast(tensor(value), 4), power(tensor(value), 4))
    assert magpy.cache_info(fast).hits == 2


@pytest.mark.skipif(not IS_TOOL, reason="a trace function receives the events")
def test_code_sends_no_events_after_a_recording():
    fast = magpy.compile(lambda x: steps(x, 2))
    fast(tensor(1))
    monitoring = sys.monitoring
    own = [tool for tool in range(6) if monitoring.get_tool(tool) == "magpy_like"]
    assert [monitoring.get_local_events(tool, steps.__code__) for tool in own] == [0]


PROGRAM = """
import json, sys, warnings, torch, magpy_like as magpy
monitoring = getattr(sys, "monitoring", None)
for tool in (3, 4) if monitoring else ():
    monitoring.use_tool_id(tool, f"tool {tool}")
fast = magpy.compile(lambda x: x * 2 + 1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    results = [fast(torch.ones(1)).item() for _ in range(2)]
taken = magpy.cache_info(fast)
if monitoring:
    monitoring.free_tool_id(3)
results += [fast(torch.ones(1)).item() for _ in range(2)]
freed = magpy.cache_info(fast)
told = " ".join(str(warning.message) for warning in caught)
print(json.dumps([results, taken.native, freed.hits - taken.hits, told]))
"""


def test_program_runs_natively_while_other_tools_have_all_free_tools():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    results, native, hits, told = json.loads(done.stdout)
    assert results == [3.0] * 4
    assert native == (2 if IS_TOOL else 0)
    assert hits == (1 if IS_TOOL else 2)
    assert ("tool 3" in told) == IS_TOOL

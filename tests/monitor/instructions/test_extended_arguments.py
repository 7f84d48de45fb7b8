"""Instructions with extended arguments (above 255), which Python 3.12 reports twice."""

import types

import torch

import magpy_like as magpy


def function_with_names(count):
    """A function with ``count`` global names that reads a global number and sets an attribute."""
    lines = [
        "def function(x, box):",
        *(f"    if x is None: x = name_{number}" for number in range(count)),
        "    box.count = box.count + 1",
        "    return x * factor + box.shift",
    ]
    variables = {"factor": 2.0}
    exec("\n".join(lines), variables)
    return variables["function"], variables


def test_reads_with_extended_arguments_are_guarded():
    function, variables = function_with_names(300)
    fast = magpy.compile(function, backend="eager")
    box = types.SimpleNamespace(count=0, shift=torch.ones(2))
    for _ in range(3):
        assert fast(torch.ones(2), box).tolist() == [3.0, 3.0]
    assert magpy.cache_info(fast).hits >= 1
    assert box.count == 3
    variables["factor"] = 3.0
    assert fast(torch.ones(2), box).tolist() == [4.0, 4.0]
    box.shift = torch.zeros(2)
    assert fast(torch.ones(2), box).tolist() == [3.0, 3.0]
    assert box.count == 5


def test_branches_jump_over_hundreds_of_instructions():
    lines = [
        "def function(x, seen):",
        "    if x.sum() > 0:",
        "        seen.add_(1)",
        *["        x = x + 1"] * 100,
        "    return x",
    ]
    variables = {}
    exec("\n".join(lines), variables)
    seen = torch.zeros(())
    fast = magpy.compile(variables["function"], backend="eager")
    assert [float(fast(x, seen)) for x in (torch.ones(()), torch.ones(()) * 2)] == [101.0, 102.0]
    assert magpy.cache_info(fast) == magpy.CacheInfo(hits=1, misses=1, records=1, graphs=1)
    assert float(fast(-torch.ones(()), seen)) == -1.0
    assert float(seen) == 2.0

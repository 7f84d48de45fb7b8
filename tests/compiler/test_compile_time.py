"""Upper limits of repeated work during compilation."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import fx, nn

from magpy_like.compiler import kernel_build
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import Body
from tests.compiler.programs import same


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))


def count_calls(owner, name, run):
    """The number of calls of a function in ``run``."""
    with mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)) as seen:
        run()
    return seen.call_count


def test_intermediate_graphs_are_not_printed():
    graph = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    x = torch.ones(2, 4, requires_grad=True)
    # Our graph, those that AOTAutograd logs, and those that it reorders, but not one per change.
    written = count_calls(fx.Graph, "python_code", lambda: compile_fx(graph, [x]))
    assert written <= 7


def test_mutation_visits_readers_of_its_memory_only():
    def program(x, *totals):
        results = []
        for total in totals:
            x = x * 1.5 + total
            results.append(x.sum())
            total.add_(results[-1])
        return x, *results

    def count_visits(layers):
        totals = [torch.ones(()) for _ in range(layers)]
        arguments = [torch.ones(4), *totals]
        names = ", ".join(f"t{k}" for k in range(layers))
        traced = {}
        exec(f"def flat(x, {names}): return program(x, {names})", {"program": program}, traced)
        graph = fx.symbolic_trace(traced["flat"])
        return count_calls(
            Box, "cost", lambda: compile_fx(graph, arguments, options={"strict": True})
        )

    assert count_visits(16) <= 2.5 * count_visits(8)
    same(program, torch.ones(4), *(torch.ones(()) for _ in range(4)))


def test_functions_are_distributed_by_size():
    functions = [("big", "x" * 50_000, []), *((f"k{n}", "x" * 5_000, []) for n in range(10))]
    with mock.patch("os.sched_getaffinity", return_value={0, 1}):
        units = kernel_build._balance_units(functions)
        assert [sum(len(text) for _, text, _ in share) for share in units] == [50_000, 50_000]
        assert (
            len(kernel_build._balance_units(functions[1:3])) == 1
        )  # too little for a second process
        assert kernel_build._balance_units([]) == []


@pytest.mark.parametrize(
    ("owner", "name", "limit"),
    [(index_arithmetic, "_needs_expansion", 300), (Body, "of", 3000)],
    ids=["addresses", "buffers"],
)
def test_scheduler_analyses_each_loop_once(owner, name, limit):
    def program(x):
        for _ in range(8):
            x = torch.relu(x - x.mean(0)) * x.amax(0)
        return x

    graph = fx.symbolic_trace(program)
    assert count_calls(owner, name, lambda: compile_fx(graph, [torch.ones(8, 16)])) <= limit

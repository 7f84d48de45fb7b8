"""What compiling a graph does no more often than it must."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import fx, nn

from magpy_like.compiler import build
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.ir import index_arithmetic
from magpy_like.compiler.ir.loop_ir import Box
from magpy_like.compiler.ir.ops import Body
from tests.compiler.programs import same


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))


def calls(owner, name, run):
    """How often ``run`` calls a function."""
    with mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)) as seen:
        run()
    return seen.call_count


def test_no_source_is_written_for_graphs_that_only_lead_to_others():
    graph = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    x = torch.ones(2, 4, requires_grad=True)
    # Ours, those that AOTAutograd shows its log, and what it reorders, but not one each change.
    written = calls(fx.Graph, "python_code", lambda: compile_fx(graph, [x]))
    assert written <= 7


def test_a_write_looks_only_at_what_reads_its_memory():
    def program(x, *totals):
        results = []
        for total in totals:
            x = x * 1.5 + total
            results.append(x.sum())
            total.add_(results[-1])
        return x, *results

    def looks(layers):
        totals = [torch.ones(()) for _ in range(layers)]
        arguments = [torch.ones(4), *totals]
        names = ", ".join(f"t{k}" for k in range(layers))
        traced = {}
        exec(f"def flat(x, {names}): return program(x, {names})", {"program": program}, traced)
        graph = fx.symbolic_trace(traced["flat"])
        return calls(Box, "cost", lambda: compile_fx(graph, arguments, options={"strict": True}))

    assert looks(16) <= 2.5 * looks(8)
    same(program, torch.ones(4), *(torch.ones(()) for _ in range(4)))


def test_functions_are_shared_out_by_their_size():
    functions = [("big", "x" * 50_000, []), *((f"k{n}", "x" * 5_000, []) for n in range(10))]
    with mock.patch("os.sched_getaffinity", return_value={0, 1}):
        shares = build._shares(functions)
        assert [sum(len(text) for _, text, _ in share) for share in shares] == [50_000, 50_000]
        assert len(build._shares(functions[1:3])) == 1  # too little for a second process
        assert build._shares([]) == []


@pytest.mark.parametrize(
    ("owner", "name", "most"),
    [(index_arithmetic, "_needs_expansion", 300), (Body, "of", 3000)],
    ids=["addresses", "buffers"],
)
def test_the_scheduler_asks_once_what_a_loop_touches_and_not_for_each_pair(owner, name, most):
    def program(x):
        for _ in range(8):
            x = torch.relu(x - x.mean(0)) * x.amax(0)
        return x

    graph = fx.symbolic_trace(program)
    assert calls(owner, name, lambda: compile_fx(graph, [torch.ones(8, 16)])) <= most

"""Launchers in pieces compute what whole ones do, wherever they are cut."""

import random

import pytest
import torch
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.compiler import kernel_build
from magpy_like.compiler.codegen import launcher_pieces
from magpy_like.compiler.codegen.launcher import COMMON, Launcher, define
from magpy_like.compiler.codegen.launcher_pieces import StepLines, split_into_pieces
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compare import assert_same
from zoo import ZOO

SOURCE = """def call(args):
    x, y, = args
    args.clear()
    a = x + 1
    b = a * y; del a
    if b is None: b = x
    c = wait(b)
    d = c + b
    del b, c
    e = d - x
    return (e, d, window(y))
"""


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch):
    monkeypatch.setattr(launcher_pieces, "MIN_STEPS", 1)


def steps(*captured):
    """One step a line, from the fourth line on; one flag for each."""
    return [StepLines(k, k + 1, flag) for k, flag in enumerate(captured, 3)]


def run(source, x, y):
    names = {"wait": lambda v: v * 10, "window": lambda v: -v}
    return define(source, names)([x, y])


def test_pieces_receive_what_they_read_and_return_what_is_read_later():
    pieces = split_into_pieces(SOURCE, steps(1, 1, 1, 0, 1, 1, 1))
    assert (
        pieces.source
        == """def piece_0(args):
    (x, y,) = args
    args.clear()
    a = x + 1
    b = a * y; del a
    if b is None: b = x
    return (b,)
def piece_1(args):
    (b, c, x,) = args
    args.clear()
    d = c + b
    del b, c
    e = d - x
    return (d, e,)
def call(args):
    x, y, = args
    args.clear()
    (b,) = piece_0([x, y])
    c = wait(b)
    (d, e,) = piece_1([b, c, x])
    del b, c, x
    return (e, d, window(y))
"""
    )
    assert run(pieces.source, 2, 3) == run(SOURCE, 2, 3)


def test_only_results_that_the_call_does_not_return_are_lendable():
    assert split_into_pieces(SOURCE, steps(1, 1, 1, 0, 1, 1, 1)).lendable == ((0,), ())


def test_a_piece_writes_to_arguments_whose_memory_its_steps_take():
    flagged = steps(1, 1, 1, 0, 1, 1, 1)
    flagged[1] = StepLines(4, 5, captured=True, written=frozenset({"b", "a", "y"}))
    flagged[4] = StepLines(7, 8, captured=True, written=frozenset({"d", "c"}))
    pieces = split_into_pieces(SOURCE, flagged)
    assert pieces.written == ((1,), (1,)), "y of piece_0(x, y) and c of piece_1(b, c, x)"


def chain(x, y):
    a = torch.sort(x).values * 2
    b = torch.sort(a + y).values
    return torch.sort(b * a).values.sum()


def test_steps_write_to_the_buffers_that_theirs_have_taken_the_memory_of(cut, monkeypatch):
    printed, found = Launcher.print, []

    def printing(self):
        source = printed(self)
        found.extend((source.splitlines(), step) for step in self.step_lines)
        return source

    monkeypatch.setattr(Launcher, "print", printing)
    with torch.no_grad():
        magpy.compile(chain)(torch.randn(64), torch.randn(64))
        magpy.compile(chain)(torch.randn(64), torch.randn(64))
    taking = []
    for lines, step in found:
        for line in lines[step.first : step.last]:
            new, _, old = line.strip().partition("; del ")[0].partition(" = ")
            if old in {name for name in step.written if name != new}:
                taking.append((new, old))
                assert new in step.written
    assert taking


@pytest.mark.parametrize("flags", range(1, 128))
def test_any_cut_computes_the_same(flags):
    captured = [bool(flags >> k & 1) for k in range(7)]
    assert run(split_into_pieces(SOURCE, steps(*captured)).source, 2, 3) == run(SOURCE, 2, 3)


def test_short_runs_stay_in_the_call(monkeypatch):
    monkeypatch.setattr(launcher_pieces, "MIN_STEPS", 3)
    pieces = split_into_pieces(SOURCE, steps(1, 1, 0, 0, 1, 1, 1))
    assert "piece_1" not in pieces.source
    assert split_into_pieces(SOURCE, steps(1, 1, 0, 1, 1, 0, 1)) is None


@pytest.fixture
def cut(monkeypatch):
    """Launchers are cut at random steps; the list counts the pieces of each."""
    counts, chance = [], random.Random(0)
    printed = Launcher.print

    def printing(self):
        source = printed(self)
        flagged = [StepLines(s.first, s.last, chance.random() < 0.7) for s in self.step_lines]
        self.pieces = split_into_pieces(source, flagged)
        latest[:] = [self.pieces]
        return source

    def calling(compiled, names, *_):
        pieces = latest.pop()
        source = compiled.launcher if pieces is None else pieces.source
        counts.append(source.count("def piece_"))
        call = define(source, {**COMMON, **names})
        call.assumes = compiled.assumes
        return call

    latest = []
    monkeypatch.setattr(Launcher, "print", printing)
    monkeypatch.setattr(kernel_build, "_call", calling)
    for cache in (kernel_build, captured_graph_cache):
        monkeypatch.setattr(cache, "key", lambda *_: None)
    return counts


def views(x, y):
    x.add_(y)
    a, b = torch.sort(x.relu() @ y.t())
    return a, a[1:], b.sum(0), x, F.softmax(a @ a.t(), -1).cumsum(0)


@pytest.mark.parametrize("seed", range(4))
def test_programs_compute_the_same_in_pieces(cut, seed):
    fast = magpy.compile(views, options={"strict": True})
    with torch.no_grad():
        for size in (5, 5, 7, 9):
            x, y = torch.randn(size, 4), torch.randn(size, 4)
            twin = x.clone()
            assert_same(fast(x, y), views(twin, y), rtol=1e-5, atol=1e-6)
    assert sum(cut) > 2


@pytest.mark.parametrize("name", ["ResNet-18", "BERT"])
def test_training_computes_the_same_in_pieces(cut, name):
    entry = ZOO[name]
    model, twin = (entry.make(seed=0).train() for _ in range(2))
    fast = magpy.compile(model, options={"strict": True})
    args, kwargs = entry.inputs(model, seed=1, batch=2)
    for _ in range(2):
        seed = torch.random.get_rng_state()
        losses = []
        for run in (fast, twin):
            torch.random.set_rng_state(seed)
            loss = entry.loss(run(*args, **kwargs))
            loss.backward()
            losses.append(loss)
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
    assert sum(cut) > 10

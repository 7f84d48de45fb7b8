"""Launchers have plain code unless a profiler is on, and the same results with either code."""

import gc

import pytest
import torch

import magpy_like as magpy
from magpy_like.compiler.runtime import profiled_launchers
from tests.profiles import profiled

X = torch.linspace(-1, 1, 64).reshape(8, 8)


@pytest.fixture(autouse=True)
def _default_device():
    """Disables the fixture of the parent conftest: a default device mode disables the cache."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))


def first(x):
    return (x * 2).sum(-1), x @ x


def second(x):
    return torch.softmax(x, -1)


def test_kernels_are_named_after_all_operators_they_compute_and_their_lines():
    fast = magpy.compile(first)
    fast(X)
    _, trace = profiled(lambda: fast(X))
    line = first.__code__.co_firstlineno + 1
    assert trace.kernels() == [f"magpy_mul_sum (runtime/test_profiled_launchers.py:{line})"]


def test_a_launcher_has_plain_code_before_and_after_a_profile():
    fast, others = magpy.compile(first), [*profiled_launchers._launchers]
    for _ in range(2):
        fast(X)
    (launcher,) = {*profiled_launchers._launchers}.difference(others)
    plain = launcher._call.__code__
    assert plain is launcher._plain.__code__
    profiled(lambda: fast(X))
    assert launcher._call.__code__ is not plain
    fast(X)
    assert launcher._call.__code__ is plain


def test_a_launcher_that_is_made_under_a_profiler_is_shown():
    shown, late = magpy.compile(first), magpy.compile(second)
    shown(X)
    _, trace = profiled(lambda: [shown(X), late(X), late(X)])
    assert len(trace.starting("magpy_exp")) + len(trace.starting("magpy__softmax")) >= 1


def test_a_cached_graph_names_the_lines_of_the_program_that_found_it():
    def make(source):
        space = {"torch": torch}
        exec(compile(source, "/some/folder/program.py", "exec"), space)
        return magpy.compile(space["f"])

    for blank in (0, 5):
        fast = make("\n" * blank + "def f(x):\n    return torch.relu(x * 3)\n")
        fast(X)
        _, trace = profiled(lambda fast=fast: fast(X))
        assert trace.kernels() == [f"magpy_mul_relu (folder/program.py:{blank + 2})"]


def test_graphs_that_dynamo_has_captured_are_shown():
    fast = torch.compile(first, backend="magpy")
    for _ in range(2):
        fast(X)
    _, trace = profiled(lambda: fast(X))
    assert trace.starting("magpy: graph") == ["magpy: graph 0 (inference)"]
    assert trace.starting("magpy_mul_sum (")


def test_launchers_die_with_their_records():
    fast = magpy.compile(second)
    fast(X)
    profiled(lambda: fast(X))
    before = len(profiled_launchers._launchers)
    magpy.reset()
    gc.collect()
    assert len(profiled_launchers._launchers) < before

"""Comparison of programs that loop over a size with eager mode."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

import magpy_like as magpy
from magpy_like.graph_operators.control_operators import for_loop
from tests.compare import assert_same
from tests.seeding import seed


def case_id(value: Any) -> str:
    """Id of a test case: the name of a program, or its mode."""
    if isinstance(value, bool):
        return "training" if value else "inference"
    return value.__name__


def check(program: Callable[..., Any], sizes: Iterable[int], training: bool) -> None:
    """Asserts that every trip count yields eager's result and leaves the same argument."""
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    check_calls(fast, program, sizes, training)


def check_calls(
    fast: Callable[..., Any], program: Callable[..., Any], sizes: Iterable[int], training: bool
) -> None:
    """``check`` for a program that is compiled already."""
    _compare(fast, program, sizes, gradient if training else outcome)


def check_one_record(program: Callable[..., Any]) -> None:
    """Asserts that one record with a loop in its graph serves all trip counts from the second call
    on.

    Trip counts of one to five are compared, too.
    """
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    _compare(fast, program, (5, 7, 9, 4, 12, 30, 6), outcome)
    assert magpy.cache_info(fast)[:4] == (5, 2, 1, 1), "the second call generalises"
    report = magpy.explain(fast, torch.ones(8, 3))
    assert not report.split_points
    (graph,) = report.graphs
    assert any(node.target is for_loop for node in graph.graph.nodes)
    _compare(fast, program, (2, 3, 1, 5), outcome)


def _compare(
    fast: Callable[..., Any], program: Callable[..., Any], sizes: Iterable[int], run: Any
) -> None:
    for i, size in enumerate(sizes):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(i))
        mine, theirs = x.clone(), x.clone()
        assert_same((run(fast, mine), mine), (run(program, theirs), theirs))


def outcome(program: Callable[..., Any], x: torch.Tensor) -> Any:
    seed(0)
    try:
        return program(x), torch.random.get_rng_state()
    except (IndexError, RuntimeError, UnboundLocalError) as error:
        return type(error), str(error)


def gradient(program: Callable[..., Any], x: torch.Tensor) -> Any:
    leaf = x.clone().requires_grad_()
    try:
        result = outcome(program, leaf)
    except RuntimeError as error:
        return str(error)
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    losses = [t.sum() for t in tensors if t.requires_grad]
    if losses:
        sum(losses).backward()
    return result, leaf.grad


def has_loop(fast: Callable[..., Any], *args: Any) -> bool:
    graphs = magpy.explain(fast, *args).graphs
    return any(node.target is for_loop for graph in graphs for node in graph.graph.nodes)

"""Branches and loops on tensors whose sizes vary between calls."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed


def both_branches_keep_sizes(x):
    if x.sum() > 0:
        y, k = x * 2, 1
    else:
        y, k = x - 1, 3
    return y * k, y.shape[0] + k


def branches_of_a_computed_size(x):
    y = torch.cat([x, x])
    if x.mean() > 0:
        y = y.relu() + torch.arange(len(y)).unsqueeze(1)
    return y.sum(0), len(y)


def nested_branches(x):
    for _ in range(2):
        if x.sum() > 0:
            x = x - 1 if x.max() > 1 else x * 2
    return x, x.shape


def halves_until_small(x):
    n = 0
    while x.norm() > 1:
        x, n = x / 2, n + 1
    return x, n


def centres_until_small(x):
    y, n = torch.cat([x, x]), 1
    while y.abs().max() > 0.3:
        y = y * 0.5
        n += 1
        y = y - y.mean(0)
    return y, y.shape[0] * 2, n


PROGRAMS = [
    both_branches_keep_sizes, branches_of_a_computed_size, nested_branches, halves_until_small,
    centres_until_small,
]  # fmt: skip
ROWS = (5, 5, 6, 9, 3, 2, 7, 12, 5)


def inputs(i, rows, training=False):
    seed(i)
    x = torch.randn(rows, 4) + (0.5 if i % 2 else -0.5)
    return x.requires_grad_(training)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_serves_all_sizes_and_both_branches(program, training, dynamic):
    fast = magpy.compile(program, backend="eager", dynamic=dynamic, fullgraph=True)
    for i, rows in enumerate(ROWS):
        found = []
        for run in (fast, program):
            x = inputs(i, rows, training)
            result = run(x)
            if training:
                result[0].pow(2).sum().backward()
            found.append((result, x.grad))
        assert_same(*found)
    assert magpy.cache_info(fast).misses == (1 if dynamic else 2)
    assert magpy.cache_info(fast).graphs == 1
    fast(torch.randn(5, 6, requires_grad=training))
    assert magpy.cache_info(fast).misses == (1 if dynamic else 3)


def test_branches_are_compiled_for_all_sizes():
    fast = magpy.compile(both_branches_keep_sizes, dynamic=True, fullgraph=True)
    for i, rows in enumerate(ROWS):
        assert_same(fast(inputs(i, rows)), both_branches_keep_sizes(inputs(i, rows)))
    assert magpy.cache_info(fast).misses == 1


def branches_of_different_sizes(x):
    return x[:2] + 1 if x.sum() > 0 else x[1:] * 2


def branches_whose_sizes_coincide(x):
    return torch.cat([x, x]) if x.sum() > 0 else torch.zeros(8, 4) + x.mean()


def iterations_that_shrink(x):
    while x.sum() > 5:
        x = x[:-1]
    return x


def branches_of_different_strides(x):
    return x.t().contiguous().t() if x.sum() > 0 else x + 1


@pytest.mark.parametrize(
    "program",
    [
        branches_of_different_sizes, branches_whose_sizes_coincide, iterations_that_shrink,
        branches_of_different_strides,
    ],
)  # fmt: skip
def test_branches_of_different_sizes_are_no_operator_and_equal_eager(program):
    fast = magpy.compile(program, backend="eager", dynamic=True)
    for i, rows in enumerate((4, 4, 5, 6, 3, 4, 7)):
        assert_same(fast(inputs(i, rows)), program(inputs(i, rows)))


def test_iterations_with_branches_rely_on_no_property_of_fake_tensors():
    def program(x, weight):
        h = x[0]
        for t in range(x.shape[0]):
            h = h @ weight
            h = h - x[t] if x[t].sum() > 0 else h * 0.5
        return h

    fast, weight = magpy.compile(program, backend="eager"), torch.eye(4)
    for i, rows in enumerate((5, 7, 9)):
        x = inputs(i, rows)
        assert_same(fast(x, weight), program(x, weight))
    assert magpy.cache_info(fast).records == 1, (
        "the second record serves the first call's size, too"
    )
    report = str(magpy.explain(fast, inputs(0, 9), weight))
    assert "FakeTensor" not in report and "default argument" not in report

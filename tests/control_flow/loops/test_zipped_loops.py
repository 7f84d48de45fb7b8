"""Loops over several iterables at once, ranges among them: ``zip(range(n), x)``."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks


def range_before_rows(x):
    h, n = x[0] * 0, x.shape[0]
    for i, y in zip(range(n), x):
        h = torch.tanh(h + y * i)
    return h, i


def rows_before_range(x):
    n = x.shape[0]
    return torch.stack([y * i for y, i in zip(x * 2, range(1, n + 1))])


def ranges_alone(x):
    h, n = x[0] * 0, x.shape[0]
    for i, j in zip(range(n - 1), range(1, n)):
        h = torch.tanh(h + x[i] * x[j] * j)
    return h, i, j


def reversed_ranges(x):
    h, n = x[0] * 0, x.shape[0]
    for y, i, j in zip(x.unbind(0)[1:], reversed(range(n)), range(n, 0, -1)):
        h = torch.tanh(h + y * x[i] * j)
    return h


def range_with_a_step(x):
    h, n = x[0] * 0, x.shape[0]
    for i, j in zip(range(0, 2 * n, 2), range(n)):
        h = torch.tanh(h + x[j] * i)
    return h


def enumerated(x):
    h = x[0] * 0
    for i, (j, y) in enumerate(zip(range(x.shape[0]), x)):
        h = torch.tanh(h + y * i * j)
    return h


def shorter_than_the_rows(x):
    h, rows = x[0] * 0, (x * 2).unbind(0)
    for i, row in zip(range(len(rows) - 2), rows):
        h = torch.tanh(h + row * i)
    return h


def longer_than_the_rows(x):
    h = x[0] * 0
    for row, i in zip(x, range(x.shape[0] + 3)):
        h = torch.tanh(h + row * i)
    return h


def first_iteration_differs(x):
    h = None
    for i, y in zip(range(x.shape[0]), x):
        h = y if h is None else torch.tanh(h + y * i)
    return h


def branching(x):
    h, n = x[0] * 0, x.shape[0]
    for i, y in zip(range(1, n + 1), x):
        if i % 2 == 0:
            h = h + y
        if i == n:
            h = h * 2
    return h


OPERATORS = [
    range_before_rows, rows_before_range, ranges_alone, reversed_ranges, range_with_a_step,
    enumerated, shorter_than_the_rows, longer_than_the_rows, first_iteration_differs, branching,
]  # fmt: skip


def first_iteration_differs_at_an_offset(x):
    h, n = None, x.shape[0]
    for i, j in zip(range(n // 2, n), range(n)):
        h = x[i] * i if h is None else torch.tanh(h + x[j] * i)
    return h


def strict(x):
    h = x[0] * 0
    try:
        for i, y in zip(range(x.shape[0] // 5 * 5), x, strict=True):
            h = torch.tanh(h + y * i)
    except ValueError:
        h = h + 7
    return h


def zip_in_a_variable(x):
    h, pairs = x[0] * 0, zip(range(x.shape[0]), x)
    next(pairs)
    for i, y in pairs:
        h = torch.tanh(h + y * i)
    return h, list(pairs)


def ranges_in_variables(x):
    n = x.shape[0]
    numbers, found = range(n), [range(n), x.size(0)]
    h = x[0] * len(numbers)
    for i, y in zip(numbers, x):
        h = torch.tanh(h + y * i)
    return h, found, numbers


OTHERS = [first_iteration_differs_at_an_offset, strict, zip_in_a_variable, ranges_in_variables]


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_trip_counts(program):
    loop_checks.check_one_record(program)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loop_checks.case_id)
def test_zipped_loop_equals_eager(program, training):
    loop_checks.check(program, (5, 7, 10, 2, 1, 9, 3), training)


def range_from_arguments(x, n, begin):
    h = x[0] * 0
    for i, y in zip(range(begin, n), x):
        h = torch.tanh(h + y * i)
    return h


def test_ranges_vary_independently_of_the_rows():
    fast = magpy.compile(range_from_arguments, backend="eager")
    x = torch.randn(12, 3)
    for n, begin in ((5, 0), (7, 0), (9, 0), (12, 2), (11, 3), (8, 1), (40, 5)):
        assert_same(fast(x, n, begin), range_from_arguments(x, n, begin))
    assert magpy.cache_info(fast)[:4] == (4, 3, 1, 1)
    assert_same(fast(x, 3, 2), range_from_arguments(x, 3, 2))
    assert magpy.cache_info(fast).misses == 4, "there is one iteration only"

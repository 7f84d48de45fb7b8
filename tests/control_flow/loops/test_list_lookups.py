"""Iterations that read list elements which earlier iterations appended."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow.loops.loop_checks import case_id, check, check_one_record, has_loop

WEIGHT = torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.1, -0.3], [0.0, 0.2, 0.5]])


def last_element(x):
    outs = [torch.zeros(3)]
    for t in range(x.shape[0]):
        outs.append(torch.tanh(outs[-1] @ WEIGHT + x[t]))
    return torch.stack(outs), outs[-1]


def by_the_index(x):
    outs = [torch.zeros(3)]
    for t in range(x.shape[0]):
        outs.append(torch.tanh(outs[t] @ WEIGHT + x[t]))
    return torch.stack(outs)


def by_smaller_indices(x):
    outs = [x[0], x[0] * 2]
    for t in range(2, x.shape[0]):
        outs.append(outs[t - 1] * 0.5 + outs[t - 2] * 0.25 + x[t])
    return torch.stack(outs)


def last_two_elements(x):
    outs = [x[0], x[0] * 2]
    for row in x:
        outs.append((outs[-1] + outs[-2]) * 0.4 + row)
    return torch.stack(outs)


def first_and_last_element(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[-1] * 0.5 + outs[0] + row)
    return torch.stack(outs)


def elements_appended_in_the_same_iteration(x):
    outs = [x[0] * 2, x[0] * 3]
    for row in x:
        outs.append(outs[-1] * 0.5 + row)
        outs.append(outs[-1] * 0.25 + outs[-2] + outs[-3])
    return torch.stack(outs)


def index_from_the_length(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[len(outs) - 1] * 0.5 + row / len(outs))
    return torch.stack(outs)


def condition_on_the_length(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[-1] * 0.5 + row if len(outs) > 3 else row - outs[-1])
    return torch.stack(outs)


def condition_on_emptiness(x):
    outs = []
    for t in range(x.shape[0]):
        h = outs[-1] if outs else torch.zeros(3)
        outs.append(torch.tanh(h @ WEIGHT + x[t]))
    return torch.stack(outs)


def while_the_list_is_short(x):
    outs, n = [x[0] * 2], x.shape[0]
    while len(outs) < n:
        outs.append(outs[-1] * 0.9 + x[1])
    return torch.stack(outs)


def different_elements_on_branches(x):
    outs = [x[0] * 2, x[0] * 3]
    for row in x:
        h = outs[-1] * 2 if row.sum() > 0 else outs[-2] * 3
        outs.append(h * 0.3 + row)
    return torch.stack(outs)


class Scan:
    def __init__(self):
        self.outs = [torch.zeros(3)]

    def step(self, row):
        self.outs.append(torch.tanh(self.outs[-1] @ WEIGHT + row))


def list_in_an_attribute(x):
    scan = Scan()
    for t in range(x.shape[0]):
        scan.step(x[t])
    return torch.stack(scan.outs)


def list_in_a_closure(x):
    outs = [x[0] * 2]

    def put(row):
        outs.append(outs[-1] * 0.5 + row)

    for row in x:
        put(row)
    return torch.stack(outs)


def two_lists(x):
    a, b = [x[0]], [x[0] * 2]
    for row in x:
        a.append(b[-1] * 0.5 + row)
        b.append(a[-2] * 0.5 - row)
    return torch.stack(a), torch.stack(b)


OPERATORS = [
    last_element, by_the_index, by_smaller_indices, last_two_elements, first_and_last_element,
    elements_appended_in_the_same_iteration, index_from_the_length, condition_on_the_length,
    condition_on_emptiness, while_the_list_is_short, different_elements_on_branches,
    list_in_an_attribute, list_in_a_closure, two_lists,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=case_id)
def test_one_record_serves_all_trip_counts(program):
    check_one_record(program)


def half_the_index(x):
    outs = [x[0] * 2]
    for t in range(0, x.shape[0], 2):
        outs.append(outs[t // 2] + x[t])
    return torch.stack(outs)


def index_slower_than_the_growth(x):
    outs = [x[0] * 2]
    for t in range(x.shape[0]):
        outs.append(outs[t] + x[t])
        outs.append(outs[-1] * 0.5)
    return torch.stack(outs)


def negative_index_of_the_loop(x):
    outs = [x[0] * 2] * 2
    for t in range(x.shape[0] - 1, 0, -1):
        outs.append(outs[-t] * 0.5 + x[t])
    return torch.stack(outs)


def index_out_of_range_with_many_iterations(x):
    outs, h = [x[0], x[0] * 3], x[0] * 3
    for t in range(x.shape[0]):
        h = h * 0.5 + outs[t - 1]
    return h


def changed_in_place(x):
    outs = [x[0] * 2]
    for row in x:
        outs[-1].mul_(2)
        outs.append(outs[-1] + row)
    return torch.stack(outs)


def replaced_element(x):
    outs = [x[0] * 2]
    for row in x:
        outs[-1] = outs[-1] * 2
        outs.append(outs[-1] + row)
    return torch.stack(outs)


def same_element_again(x):
    outs = [x[0] * 2]
    for _ in x:
        outs.append(outs[-1])
    outs[-1].add_(1)
    return torch.stack(outs), len(set(map(id, outs)))


def compares_identity(x):
    outs, found = [x[0] * 2], 0
    for row in x:
        h = outs[-1]
        outs.append(row + h)
        found += outs[-2] is h
    return torch.stack(outs), found


def growing_sizes(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(torch.cat([outs[-1], row]))
    return outs[-1]


def dtype_changes(x):
    outs = [torch.zeros(3, dtype=torch.int64)]
    for row in x:
        outs.append(outs[-1] + row)
    return torch.stack(outs[1:])


def none_at_first(x):
    outs = [None]
    for row in x:
        outs.append(row if outs[-1] is None else outs[-1] + row)
    return torch.stack(outs[1:])


def missing_element(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[-5] + row)
    return torch.stack(outs)


def list_as_a_whole(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(torch.stack(outs).sum(0) + row)
    return torch.stack(outs)


UNROLLED = [
    half_the_index, index_slower_than_the_growth, negative_index_of_the_loop,
    index_out_of_range_with_many_iterations, changed_in_place, replaced_element,
    same_element_again, compares_identity, growing_sizes, dtype_changes, none_at_first,
    missing_element, list_as_a_whole,
]  # fmt: skip


@pytest.mark.parametrize("training", [False, True], ids=case_id)
@pytest.mark.parametrize("program", [*OPERATORS, *UNROLLED], ids=case_id)
def test_each_trip_count_equals_eager(program, training):
    check(program, (8, 9, 11, 4, 3, 2, 1, 12), training)


def test_start_of_the_loop_determines_the_elements_read():
    def program(x, begin):
        outs = [x[i] for i in range(6)]
        for t in range(begin, x.shape[0]):
            outs.append(outs[t] * 0.5 + x[t])
        return torch.stack(outs)

    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for rows, begin in ((9, 0), (11, 0), (12, 1), (10, 2), (8, 0), (9, 3), (12, 0)):
        x = torch.randn(rows, 3)
        assert_same(fast(x, begin), program(x, begin))
    assert has_loop(fast, torch.randn(10, 3), 0)


def test_list_that_does_not_grow_has_one_length_in_all_iterations():
    def program(x):
        layers, outs = [WEIGHT, WEIGHT * 2], []
        for row in x:
            for i in range(len(layers)):
                row = torch.tanh(row @ layers[i])
            outs.append(row)
        return torch.stack(outs)

    check_one_record(program)


def test_loop_with_early_exit_reads_appended_elements():
    def program(x):
        outs = [x[0] * 2]
        for row in x:
            outs.append(outs[-1] * 0.9 + row)
            if outs[-1].sum() > 6:
                break
        return torch.stack(outs), len(outs)

    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    ends = set()
    for i in range(12):
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(i)) + 0.1 * i
        assert_same(fast(x), program(x))
        ends.add(program(x)[1])
    assert len(ends) > 3
    assert magpy.cache_info(fast).records == 1


def test_code_after_a_loop_with_early_exit_may_read_the_length_of_its_list():
    def program(x):
        outs = [x[0] * 2]
        for row in x:
            if row.sum() > 5:
                return row
            outs.append(row * 2)
        return outs[-1] * len(outs)

    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for i, rows in enumerate((12, 9, 10, 12, 14, 9, 20, 11)):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(i))
        for argument in (x, x * 5):
            assert_same(fast(argument), program(argument))

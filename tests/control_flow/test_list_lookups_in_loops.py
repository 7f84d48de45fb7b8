"""Rounds that look up what earlier ones have appended to a list: from its end, or by the index."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow.loops import check, check_one_record, has_loop, name

WEIGHT = torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.1, -0.3], [0.0, 0.2, 0.5]])


def last(x):
    outs = [torch.zeros(3)]
    for t in range(x.shape[0]):
        outs.append(torch.tanh(outs[-1] @ WEIGHT + x[t]))
    return torch.stack(outs), outs[-1]


def by_the_index(x):
    outs = [torch.zeros(3)]
    for t in range(x.shape[0]):
        outs.append(torch.tanh(outs[t] @ WEIGHT + x[t]))
    return torch.stack(outs)


def by_less_than_the_index(x):
    outs = [x[0], x[0] * 2]
    for t in range(2, x.shape[0]):
        outs.append(outs[t - 1] * 0.5 + outs[t - 2] * 0.25 + x[t])
    return torch.stack(outs)


def last_but_one(x):
    outs = [x[0], x[0] * 2]
    for row in x:
        outs.append((outs[-1] + outs[-2]) * 0.4 + row)
    return torch.stack(outs)


def first_and_last(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[-1] * 0.5 + outs[0] + row)
    return torch.stack(outs)


def what_the_round_has_appended(x):
    outs = [x[0] * 2, x[0] * 3]
    for row in x:
        outs.append(outs[-1] * 0.5 + row)
        outs.append(outs[-1] * 0.25 + outs[-2] + outs[-3])
    return torch.stack(outs)


def by_the_length(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[len(outs) - 1] * 0.5 + row / len(outs))
    return torch.stack(outs)


def by_a_question_of_the_length(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[-1] * 0.5 + row if len(outs) > 3 else row - outs[-1])
    return torch.stack(outs)


def if_there_is_one(x):
    outs = []
    for t in range(x.shape[0]):
        h = outs[-1] if outs else torch.zeros(3)
        outs.append(torch.tanh(h @ WEIGHT + x[t]))
    return torch.stack(outs)


def as_long_as_it_is_short(x):
    outs, n = [x[0] * 2], x.shape[0]
    while len(outs) < n:
        outs.append(outs[-1] * 0.9 + x[1])
    return torch.stack(outs)


def on_one_side(x):
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


def of_an_object(x):
    scan = Scan()
    for t in range(x.shape[0]):
        scan.step(x[t])
    return torch.stack(scan.outs)


def of_a_closure(x):
    outs = [x[0] * 2]

    def put(row):
        outs.append(outs[-1] * 0.5 + row)

    for row in x:
        put(row)
    return torch.stack(outs)


def of_each_other(x):
    a, b = [x[0]], [x[0] * 2]
    for row in x:
        a.append(b[-1] * 0.5 + row)
        b.append(a[-2] * 0.5 - row)
    return torch.stack(a), torch.stack(b)


OPERATORS = [
    last, by_the_index, by_less_than_the_index, last_but_one, first_and_last,
    what_the_round_has_appended, by_the_length, by_a_question_of_the_length, if_there_is_one,
    as_long_as_it_is_short, on_one_side, of_an_object, of_a_closure, of_each_other,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=name)
def test_one_record_serves_every_number_of_rounds(program):
    check_one_record(program)


def every_second_one_by_its_number(x):
    outs = [x[0] * 2]
    for t in range(0, x.shape[0], 2):
        outs.append(outs[t // 2] + x[t])
    return torch.stack(outs)


def slower_than_it_grows(x):
    outs = [x[0] * 2]
    for t in range(x.shape[0]):
        outs.append(outs[t] + x[t])
        outs.append(outs[-1] * 0.5)
    return torch.stack(outs)


def counted_from_the_end_by_the_index(x):
    outs = [x[0] * 2] * 2
    for t in range(x.shape[0] - 1, 0, -1):
        outs.append(outs[-t] * 0.5 + x[t])
    return torch.stack(outs)


def beyond_its_end_if_there_are_many_rounds(x):
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


def another_in_its_place(x):
    outs = [x[0] * 2]
    for row in x:
        outs[-1] = outs[-1] * 2
        outs.append(outs[-1] + row)
    return torch.stack(outs)


def the_same_once_more(x):
    outs = [x[0] * 2]
    for _ in x:
        outs.append(outs[-1])
    outs[-1].add_(1)
    return torch.stack(outs), len(set(map(id, outs)))


def asked_which_it_is(x):
    outs, found = [x[0] * 2], 0
    for row in x:
        h = outs[-1]
        outs.append(row + h)
        found += outs[-2] is h
    return torch.stack(outs), found


def of_another_size(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(torch.cat([outs[-1], row]))
    return outs[-1]


def of_another_type(x):
    outs = [torch.zeros(3, dtype=torch.int64)]
    for row in x:
        outs.append(outs[-1] + row)
    return torch.stack(outs[1:])


def nothing_at_first(x):
    outs = [None]
    for row in x:
        outs.append(row if outs[-1] is None else outs[-1] + row)
    return torch.stack(outs[1:])


def not_there(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(outs[-5] + row)
    return torch.stack(outs)


def as_a_whole(x):
    outs = [x[0] * 2]
    for row in x:
        outs.append(torch.stack(outs).sum(0) + row)
    return torch.stack(outs)


UNROLLED = [
    every_second_one_by_its_number, slower_than_it_grows, counted_from_the_end_by_the_index,
    beyond_its_end_if_there_are_many_rounds, changed_in_place, another_in_its_place,
    the_same_once_more, asked_which_it_is, of_another_size, of_another_type, nothing_at_first,
    not_there, as_a_whole,
]  # fmt: skip


@pytest.mark.parametrize("training", [False, True], ids=name)
@pytest.mark.parametrize("program", [*OPERATORS, *UNROLLED], ids=name)
def test_each_number_of_rounds_gives_what_it_gives_in_eager_mode(program, training):
    check(program, (8, 9, 11, 4, 3, 2, 1, 12), training)


def test_where_a_loop_begins_decides_which_elements_it_looks_up():
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


def test_a_list_that_does_not_grow_has_one_length_in_all_rounds():
    def program(x):
        layers, outs = [WEIGHT, WEIGHT * 2], []
        for row in x:
            for i in range(len(layers)):
                row = torch.tanh(row @ layers[i])
            outs.append(row)
        return torch.stack(outs)

    check_one_record(program)


def test_a_loop_that_may_end_looks_up_what_it_has_appended():
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


def test_what_follows_a_loop_that_may_end_may_ask_how_long_its_list_is():
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
        for given in (x, x * 5):
            assert_same(fast(given), program(given))

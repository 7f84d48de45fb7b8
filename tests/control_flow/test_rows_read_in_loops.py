"""Rounds that read rows which earlier ones have written into a tensor of the function's own."""

import pytest
import torch

from tests.control_flow.loops import check, check_one_record, name

WEIGHT = torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.1, -0.3], [0.0, 0.2, 0.5]])


def the_one_before(x):
    out = torch.zeros_like(x)
    out[0] = x[0]
    for t in range(1, x.shape[0]):
        out[t] = torch.tanh(out[t - 1] @ WEIGHT + x[t])
    return out


def into_the_next(x):
    out = torch.zeros(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        out[t + 1] = torch.tanh(out[t] @ WEIGHT + x[t])
    return out


def the_two_before(x):
    out = torch.ones(x.shape[0] + 2, 3)
    for t in range(x.shape[0]):
        out[t + 2] = (out[t + 1] + out[t]) * 0.5 + x[t]
    return out, out[-1]


def columns(x):
    out = torch.zeros(2, x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        out[:, t + 1] = torch.tanh(out[:, t] + x[t])
    return out


def numbers(x):
    out = torch.zeros(x.shape[0] + 1)
    for t in range(x.shape[0]):
        out[t + 1] = out[t] * 0.5 + x[t].sum()
    return out


def backwards(x):
    n = x.shape[0]
    out = torch.zeros(n + 1, 3)
    for t in reversed(range(n)):
        out[t] = x[t] + 0.9 * out[t + 1]
    return out[:-1]


def of_another_type(x):
    out = torch.zeros(x.shape[0] + 1, 3, dtype=torch.float16)
    for t in range(x.shape[0]):
        out[t + 1] = out[t].float() * 1.01 + x[t]
    return out


def those_that_come_later(x):
    out = torch.full((x.shape[0] + 1, 3), 2.0)
    for t in range(x.shape[0]):
        out[t] = out[t + 1] * 0.5 + x[t]
    return out


def of_every_second_round(x):
    out = torch.ones(x.shape[0] + 2, 3)
    for t in range(0, x.shape[0], 2):
        out[t + 2] = out[t] * 0.5 + out[t + 1] + x[t]
    return out


def beside_a_state_and_a_list(x):
    a, b, h = torch.zeros(x.shape[0] + 1, 3), torch.zeros(x.shape[0], 3), torch.ones(3)
    found = [x[0]]
    for t in range(x.shape[0]):
        h = torch.tanh(h + a[t])
        a[t + 1] = h * x[t]
        b[t] = a[t] + found[-1]
        found.append(h + found[-1])
    return a, b, h, found


def by_how_they_lie(x):
    out = torch.zeros(2, x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        row = out[:, t]
        out[:, t + 1] = row * 0.5 + x[t] + row.stride(0) + float(row.is_contiguous())
    return out


OPERATORS = [
    the_one_before, into_the_next, the_two_before, columns, numbers, backwards, of_another_type,
    those_that_come_later, of_every_second_round, beside_a_state_and_a_list, by_how_they_lie,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=name)
def test_one_record_serves_every_number_of_rounds(program):
    check_one_record(program)


def its_own(x):
    out = torch.ones(x.shape[0], 3)
    for t in range(1, x.shape[0]):
        out[t] = out[t] * 2 + out[t - 1]
    return out


def its_own_behind_the_write(x):
    out, total = torch.ones(x.shape[0], 3), torch.zeros(3)
    for t in range(1, x.shape[0]):
        out[t] = x[t] + out[t - 1]
        total = total + out[t]
    return out, total


def changed_in_place(x):
    out = torch.ones(x.shape[0], 3)
    for t in range(1, x.shape[0]):
        out[t - 1].mul_(2)
        out[t] = x[t] + out[t - 1]
    return out


def a_view_of_which_is_changed(x):
    out = torch.ones(x.shape[0], 3)
    for t in range(1, x.shape[0]):
        out[t - 1].view(3)[:2].mul_(2)
        out[t] = x[t] + out[t - 1]
    return out


def added_to(x):
    out = torch.ones(x.shape[0], 3)
    for t in range(1, x.shape[0]):
        out[t] += out[t - 1]
    return out


def kept_as_views(x):
    out, before, found = torch.ones(x.shape[0], 3), x[0], []
    for t in range(1, x.shape[0]):
        out[t] = x[t] + out[t - 1] + before
        before = out[t - 1]
        found.append(before)
    out.mul_(2)
    return out, before, found


def from_the_end(x):
    out = torch.ones(x.shape[0], 3)
    for t in range(x.shape[0]):
        out[t] = x[t] + out[t - 1] * 0.5
    return out


def beyond_the_end(x):
    out = torch.ones(6, 3)
    for t in range(x.shape[0]):
        out[t] = x[0] + out[t + 1] * 0.5
    return out


def written_twice(x):
    out = torch.ones(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        out[t + 1] = x[t] + out[t] * 0.5
        out[t] = out[t + 1] * 0.5
    return out


def always_the_same(x):
    out = torch.ones(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        out[t + 1] = x[t] + out[0] * 0.5
    return out


def by_another_name(x):
    out = torch.ones(x.shape[0] + 1, 3)
    other = out.view(-1, 3)
    for t in range(x.shape[0]):
        out[t + 1] = x[t] + other[t] * 0.5
    return out


def on_one_side(x):
    out = torch.zeros(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        h = out[t] * 2 if x[t].sum() > 0 else out[t] - 1
        out[t + 1] = h * 0.3
    return out


UNROLLED = [
    its_own, its_own_behind_the_write, changed_in_place, a_view_of_which_is_changed, added_to,
    kept_as_views, from_the_end, beyond_the_end, written_twice, always_the_same, by_another_name,
    on_one_side,
]  # fmt: skip


@pytest.mark.parametrize("training", [False, True], ids=name)
@pytest.mark.parametrize("program", [*OPERATORS, *UNROLLED], ids=name)
def test_each_number_of_rounds_gives_what_it_gives_in_eager_mode(program, training):
    check(program, (8, 9, 11, 4, 3, 2, 1, 12), training)


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_where_the_loop_begins_decides_which_rows_were_there_before(begin):
    def program(x):
        out = torch.arange(3.0).expand(x.shape[0] + 2, 3) * x[0]
        for t in range(begin, x.shape[0]):
            out[t + 2] = out[t] + out[t + 1] * 0.5
        return out

    check_one_record(program)

"""Iterations that read rows which earlier ones have written into a new tensor."""

import pytest
import torch

from tests.control_flow.loops.loop_checks import case_id, check, check_one_record

WEIGHT = torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.1, -0.3], [0.0, 0.2, 0.5]])


def previous_row(x):
    out = torch.zeros_like(x)
    out[0] = x[0]
    for t in range(1, x.shape[0]):
        out[t] = torch.tanh(out[t - 1] @ WEIGHT + x[t])
    return out


def written_to_the_next_row(x):
    out = torch.zeros(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        out[t + 1] = torch.tanh(out[t] @ WEIGHT + x[t])
    return out


def two_previous_rows(x):
    out = torch.ones(x.shape[0] + 2, 3)
    for t in range(x.shape[0]):
        out[t + 2] = (out[t + 1] + out[t]) * 0.5 + x[t]
    return out, out[-1]


def columns(x):
    out = torch.zeros(2, x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        out[:, t + 1] = torch.tanh(out[:, t] + x[t])
    return out


def scalars(x):
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


def half_precision_rows(x):
    out = torch.zeros(x.shape[0] + 1, 3, dtype=torch.float16)
    for t in range(x.shape[0]):
        out[t + 1] = out[t].float() * 1.01 + x[t]
    return out


def later_rows(x):
    out = torch.full((x.shape[0] + 1, 3), 2.0)
    for t in range(x.shape[0]):
        out[t] = out[t + 1] * 0.5 + x[t]
    return out


def rows_of_every_second_iteration(x):
    out = torch.ones(x.shape[0] + 2, 3)
    for t in range(0, x.shape[0], 2):
        out[t + 2] = out[t] * 0.5 + out[t + 1] + x[t]
    return out


def next_to_a_state_and_a_list(x):
    a, b, h = torch.zeros(x.shape[0] + 1, 3), torch.zeros(x.shape[0], 3), torch.ones(3)
    found = [x[0]]
    for t in range(x.shape[0]):
        h = torch.tanh(h + a[t])
        a[t + 1] = h * x[t]
        b[t] = a[t] + found[-1]
        found.append(h + found[-1])
    return a, b, h, found


def strides_of_rows(x):
    out = torch.zeros(2, x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        row = out[:, t]
        out[:, t + 1] = row * 0.5 + x[t] + row.stride(0) + float(row.is_contiguous())
    return out


OPERATORS = [
    previous_row, written_to_the_next_row, two_previous_rows, columns, scalars, backwards,
    half_precision_rows, later_rows, rows_of_every_second_iteration, next_to_a_state_and_a_list,
    strides_of_rows,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=case_id)
def test_one_record_serves_all_trip_counts(program):
    check_one_record(program)


def row_being_written(x):
    out = torch.ones(x.shape[0], 3)
    for t in range(1, x.shape[0]):
        out[t] = out[t] * 2 + out[t - 1]
    return out


def row_read_after_its_write(x):
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


def view_changed_in_place(x):
    out = torch.ones(x.shape[0], 3)
    for t in range(1, x.shape[0]):
        out[t - 1].view(3)[:2].mul_(2)
        out[t] = x[t] + out[t - 1]
    return out


def augmented_assignment(x):
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


def negative_index(x):
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


def constant_row(x):
    out = torch.ones(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        out[t + 1] = x[t] + out[0] * 0.5
    return out


def read_through_a_view(x):
    out = torch.ones(x.shape[0] + 1, 3)
    other = out.view(-1, 3)
    for t in range(x.shape[0]):
        out[t + 1] = x[t] + other[t] * 0.5
    return out


def read_on_branches(x):
    out = torch.zeros(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        h = out[t] * 2 if x[t].sum() > 0 else out[t] - 1
        out[t + 1] = h * 0.3
    return out


UNROLLED = [
    row_being_written, row_read_after_its_write, changed_in_place, view_changed_in_place,
    augmented_assignment, kept_as_views, negative_index, beyond_the_end, written_twice,
    constant_row, read_through_a_view, read_on_branches,
]  # fmt: skip


@pytest.mark.parametrize("training", [False, True], ids=case_id)
@pytest.mark.parametrize("program", [*OPERATORS, *UNROLLED], ids=case_id)
def test_each_trip_count_equals_eager(program, training):
    check(program, (8, 9, 11, 4, 3, 2, 1, 12), training)


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_start_of_the_loop_determines_the_initial_rows(begin):
    def program(x):
        out = torch.arange(3.0).expand(x.shape[0] + 2, 3) * x[0]
        for t in range(begin, x.shape[0]):
            out[t + 2] = out[t] + out[t + 1] * 0.5
        return out

    check_one_record(program)

"""Slices of constant length at a loop's index, as in ``x[:, t : t + 1]``."""

import pytest
import torch

from tests.control_flow.loops import loop_checks


def row_by_row(x):
    h = x[:1] * 0
    for t in range(x.shape[0]):
        h = torch.tanh(x[t : t + 1] + h)
    return h


def columns(x):
    y = x.t()[None]
    h, found = y[:, :, :1] * 0, []
    for t in range(x.shape[0]):
        h = h * 0.5 + y[:, :, t : t + 1]
        found.append(h)
    return torch.cat(found, 2)


def windows_of_two(x):
    h = x[0] * 0
    for t in range(1, x.shape[0]):
        h = h * 0.5 + x[t - 1 : t + 1].sum(0)
    return h


def backwards(x):
    h = x[:1] * 0
    for t in range(x.shape[0] - 1, -1, -1):
        h = torch.tanh(x[t : t + 1] + h)
    return h


def exits_early(x):
    h = x[:1] * 0
    for t in range(x.shape[0]):
        h = torch.tanh(x[t : t + 1] + h)
        if h.sum() > 1.5:
            break
    return h


def beyond_the_end(x):
    return [x[t : t + 3] * 2 for t in range(x.shape[0])]


def growing_slices(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = h * 0.5 + x[: t + 1].sum(0)
    return h


def starts_before_the_first(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = h * 0.5 + x[t - 1 : t + 1].sum(0)
    return h


def written_to(x):
    y = x * 2
    for t in range(x.shape[0]):
        y[t : t + 1] = y[t : t + 1] * 2
    return y


INSIDE = [row_by_row, columns, windows_of_two, backwards]
OTHERS = [exits_early, beyond_the_end, growing_slices, starts_before_the_first, written_to]


@pytest.mark.parametrize("program", INSIDE, ids=loop_checks.case_id)
def test_loop_that_reads_slices_within_bounds_is_one_operator(program):
    loop_checks.check_one_record(program)


@pytest.mark.parametrize("program", INSIDE + OTHERS, ids=loop_checks.case_id)
def test_slices_in_loops_equal_eagers(program):
    loop_checks.check(program, (5, 7, 2, 4), training=True)

"""Operators that would fix varying sizes do not, and give what eager gives."""

import pytest
import torch

from tests.monitor.symbolic.test_dynamic_shapes import sized
from tests.programs import Twins

ROWS = (4, 6, 9, 3, 12, 5)


def _along(x):
    order = x.argsort(1)
    return torch.take_along_dim(x, order, dim=1), x.take_along_dim(order[:1, :2], dim=-1)


def _along_flat(x):
    return torch.take_along_dim(x, x.argmax().reshape(1))


def _along_broadcast(x):
    return torch.take_along_dim(x.unsqueeze(1), x.new_zeros(1, 2, 1, dtype=torch.int64), 2)


def _last(x):
    n = x.shape[0]
    return x[n - 1], x[n - 2, 1:], x[..., n - n], x[None, n - 3], x[1:, None, n - n + 1]


def _negative(x):
    n = x.shape[0]
    return x[-n], x[1 - n, :], x[n - 1, -1]


def _written(x):
    n, y = x.shape[0], x.clone()
    y[n - 1] = 5.0
    y[n - 2, 1:] = x[0, 1:] * 2
    y[..., n - n] = x.sum(1)
    y[: n - 1, n - n + 1] += 1
    return y


def _written_twice(x):
    n, y = x.shape[0], x.clone()
    view = y[n - 1]
    y[n - 1, 0] = 7.0
    view[1] = view[0] + y[n - 1, 0]
    return y, view


PROGRAMS = [_along, _along_flat, _along_broadcast, _last, _negative, _written, _written_twice]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_all_sizes_share_a_record(program):
    twins = Twins(lambda: program)
    for i, rows in enumerate(ROWS):
        twins.call(sized((rows, 3)), hit=i > 1, why=f"{rows} rows")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_eager_s(program):
    twins = Twins(lambda: program)
    for rows in ROWS:

        def inputs(rows=rows):
            values = torch.arange(rows * 3.0).reshape(rows, 3)
            return ((values * 7 % 5).requires_grad_(),)

        twins.call(inputs, backward=True)


def test_an_index_that_is_out_of_range_is_refused_by_eager_mode():
    def program(x, i):
        return x[i, : x.shape[0]] * 2

    twins = Twins(lambda: program)
    for rows, i in ((4, 1), (5, 2), (6, 3), (4, -1), (5, 5), (5, 4), (3, -4), (3, -3)):
        twins.call(lambda rows=rows, i=i: (torch.ones(rows, 2), i))

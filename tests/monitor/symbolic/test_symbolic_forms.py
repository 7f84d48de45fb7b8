"""Symbolic forms of operators that would specialize sizes."""

import pytest
import torch

from tests.monitor.symbolic.test_dynamic_shapes import sized
from tests.programs import Twins

ROWS = (4, 6, 9, 3, 12, 5)


def _take_along_dim(x):
    order = x.argsort(1)
    return torch.take_along_dim(x, order, dim=1), x.take_along_dim(order[:1, :2], dim=-1)


def _take_along_dim_of_flat_tensor(x):
    return torch.take_along_dim(x, x.argmax().reshape(1))


def _take_along_dim_with_broadcasting(x):
    return torch.take_along_dim(x.unsqueeze(1), x.new_zeros(1, 2, 1, dtype=torch.int64), 2)


def _last_rows(x):
    n = x.shape[0]
    return x[n - 1], x[n - 2, 1:], x[..., n - n], x[None, n - 3], x[1:, None, n - n + 1]


def _negative_indices(x):
    n = x.shape[0]
    return x[-n], x[1 - n, :], x[n - 1, -1]


def _written_rows(x):
    n, y = x.shape[0], x.clone()
    y[n - 1] = 5.0
    y[n - 2, 1:] = x[0, 1:] * 2
    y[..., n - n] = x.sum(1)
    y[: n - 1, n - n + 1] += 1
    return y


def _written_through_a_view(x):
    n, y = x.shape[0], x.clone()
    view = y[n - 1]
    y[n - 1, 0] = 7.0
    view[1] = view[0] + y[n - 1, 0]
    return y, view


PROGRAMS = [
    _take_along_dim,
    _take_along_dim_of_flat_tensor,
    _take_along_dim_with_broadcasting,
    _last_rows,
    _negative_indices,
    _written_rows,
    _written_through_a_view,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_record_serves_all_sizes(program):
    twins = Twins(lambda: program)
    for i, rows in enumerate(ROWS):
        twins.call(sized((rows, 3)), hit=i > 1, why=f"{rows} rows")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_match_eager(program):
    twins = Twins(lambda: program)
    for rows in ROWS:

        def inputs(rows=rows):
            values = torch.arange(rows * 3.0).reshape(rows, 3)
            return ((values * 7 % 5).requires_grad_(),)

        twins.call(inputs, backward=True)


def test_index_out_of_range_raises_as_in_eager():
    def program(x, i):
        return x[i, : x.shape[0]] * 2

    twins = Twins(lambda: program)
    for rows, i in ((4, 1), (5, 2), (6, 3), (4, -1), (5, 5), (5, 4), (3, -4), (3, -3)):
        twins.call(lambda rows=rows, i=i: (torch.ones(rows, 2), i))

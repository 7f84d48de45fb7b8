"""Indices that an operator does not admit raise, also where other operators give it its meaning."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled

pytestmark = pytest.mark.cpu  # a GPU gives up altogether


def _searched(index):
    return torch.searchsorted(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2.5]), sorter=index)


def _unpooled(index):
    return F.max_unpool1d(torch.ones(1, 1, 3), index[None, None], 2)


def _unpooled_in_two_dimensions(index):
    return F.max_unpool2d(torch.ones(1, 1, 3), index[None, None], (1, 2))


def _unpooled_in_three_dimensions(index):
    x, index = torch.ones(1, 1, 1, 3), index[None, None, None]
    return F.max_unpool3d(x, index, (1, 1, 2))


@pytest.mark.parametrize("wrong", [-1, -3, 6])
@pytest.mark.parametrize(
    "function", [_searched, _unpooled, _unpooled_in_two_dimensions, _unpooled_in_three_dimensions]
)
def test_an_index_that_counts_from_the_end_is_none(function, wrong):
    fast = compiled(function)
    right = torch.tensor([0, 2, 1])
    torch.testing.assert_close(fast(right), function(right))
    for call in (function, fast):
        with pytest.raises((IndexError, RuntimeError), match=r"out of|invalid|inconsistent"):
            call(torch.tensor([0, wrong, 1]))
    torch.testing.assert_close(fast(right), function(right))

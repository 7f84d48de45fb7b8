"""Invalid indices of an operator raise, also in operators that are decomposed."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled

pytestmark = pytest.mark.cpu  # a failed check leaves a GPU unusable


def _searchsorted(index):
    return torch.searchsorted(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2.5]), sorter=index)


def _unpool1d(index):
    return F.max_unpool1d(torch.ones(1, 1, 3), index[None, None], 2)


def _unpool2d(index):
    return F.max_unpool2d(torch.ones(1, 1, 3), index[None, None], (1, 2))


def _unpool3d(index):
    x, index = torch.ones(1, 1, 1, 3), index[None, None, None]
    return F.max_unpool3d(x, index, (1, 1, 2))


@pytest.mark.parametrize("invalid", [-1, -3, 6])
@pytest.mark.parametrize("function", [_searchsorted, _unpool1d, _unpool2d, _unpool3d])
def test_negative_indices_raise(function, invalid):
    fast = compiled(function)
    valid = torch.tensor([0, 2, 1])
    torch.testing.assert_close(fast(valid), function(valid))
    for call in (function, fast):
        with pytest.raises((IndexError, RuntimeError), match=r"out of|invalid|inconsistent"):
            call(torch.tensor([0, invalid, 1]))
    torch.testing.assert_close(fast(valid), function(valid))

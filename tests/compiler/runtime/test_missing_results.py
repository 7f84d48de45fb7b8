"""An operator that gives no tensor where its meta function promises one, such as an LSTM's layer."""

import copy
import warnings

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same


@pytest.mark.parametrize("train", [False, True])
def test_an_lstm_runs_as_it_was_compiled(train):
    torch.manual_seed(0)
    theirs = nn.LSTM(4, 3, num_layers=2, bidirectional=True).train(train)
    mine, x = copy.deepcopy(theirs), torch.randn(5, 2, 4)
    fast = magpy.compile(mine, backend="magpy")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", UserWarning)  # says where a graph keeps raising
        for _ in range(4):
            assert_same(fast(x), theirs(x))
    assert magpy.cache_info(fast).hits == 3

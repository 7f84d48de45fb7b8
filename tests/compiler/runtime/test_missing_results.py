"""An operator that gives no tensor where its meta function promises one: oneDNN's LSTM layer has a
workspace in the grad mode only, and its backward needs it."""

import copy
import warnings

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same


def program(layer, x):
    result, (h, c) = layer(x)
    return result.tanh(), h + c


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_an_lstm_runs_as_it_was_compiled(train, grad):
    torch.manual_seed(0)
    if torch.get_default_device().type == "cuda":
        train |= grad  # cuDNN has no gradients for a layer in evaluation
    expected = nn.LSTM(4, 3, num_layers=2, bidirectional=True).train(train)
    actual, x = copy.deepcopy(expected), torch.randn(5, 2, 4)
    actual.flatten_parameters()  # cuDNN warns of weights that lie apart, as a copy's do
    fast = magpy.compile(program, backend="magpy")
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("error", UserWarning)  # says where a graph keeps raising
        for _ in range(4):
            left = []
            for run, layer in ((fast, actual), (program, expected)):
                layer.zero_grad()
                out, state = run(layer, x)
                if grad:
                    ((out * x.sum(-1, keepdim=True)).sum() + state.prod()).backward()
                left.append((out, state, [p.grad for p in layer.parameters()]))
            assert_same(*left)
    assert magpy.cache_info(fast).hits == 3

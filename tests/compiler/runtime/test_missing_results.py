"""Operators that return no tensor where their meta function does: oneDNN's LSTM layer returns a
workspace in grad mode only, and its backward pass needs it."""

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
def test_lstm_with_missing_workspace_equals_eager(train, grad):
    torch.manual_seed(0)
    if torch.get_default_device().type == "cuda":
        train |= grad  # cuDNN has no gradients in evaluation mode
    expected = nn.LSTM(4, 3, num_layers=2, bidirectional=True).train(train)
    actual, x = copy.deepcopy(expected), torch.randn(5, 2, 4)
    actual.flatten_parameters()  # cuDNN warns of weights in separate memory, as in a copy
    fast = magpy.compile(program, backend="magpy")
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("error", UserWarning)  # warns of graphs that keep raising
        for _ in range(4):
            outcomes = []
            for run, layer in ((fast, actual), (program, expected)):
                layer.zero_grad()
                out, state = run(layer, x)
                if grad:
                    ((out * x.sum(-1, keepdim=True)).sum() + state.prod()).backward()
                outcomes.append((out, state, [p.grad for p in layer.parameters()]))
            assert_same(*outcomes)
    assert magpy.cache_info(fast).hits == 3

"""Recurrent layers equal eager's, in any library or decomposition that computes them."""

import logging

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import magpy_like as magpy

LAYERS = {
    "LSTM": lambda: nn.LSTM(4, 5),
    "bidirectional LSTM": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(4, 5, proj_size=3, batch_first=True),
    "GRU": lambda: nn.GRU(4, 5, bidirectional=True, batch_first=True),
    "RNN": lambda: nn.RNN(4, 5, num_layers=2),
    "ReLU RNN": lambda: nn.RNN(4, 5, nonlinearity="relu", bias=False),
}


@pytest.fixture(autouse=True)
def _default_device():
    """Disables the fixture of the parent conftest: a default device mode prevents capture."""


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_equal_eager(name, dtype, train, device, caplog):
    x = torch.randn(3, 2, 4, device=device, dtype=dtype)
    assert_equals_eager(LAYERS[name]().to(device, dtype), x, train, caplog)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_between_layers_draws_eager_numbers(kind, dtype, device, caplog):
    layer = kind(4, 5, num_layers=2, dropout=0.5).to(device, dtype)
    assert_equals_eager(layer, torch.randn(3, 2, 4, device=device, dtype=dtype), True, caplog)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences_equal_eager(kind, device, caplog):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(4, 5)

        def forward(self, data, sizes):
            packed = nn.utils.rnn.PackedSequence(data, sizes)
            output, states = self.layer(packed)
            return output.data * 2, states

    sizes = torch.tensor([3, 2, 1])
    data = torch.randn(6, 4, device=device)
    assert_equals_eager(Packed().to(device), data, True, caplog, sizes)


def assert_equals_eager(layer, x, train, caplog, *arguments):
    caplog.set_level(logging.INFO, logger="magpy_like.records")
    fast = magpy.compile(layer, fullgraph=True)
    with torch.set_grad_enabled(train):
        fast(x, *arguments)
        torch.manual_seed(3)
        actual = pytree.tree_leaves(fast(x, *arguments))
        torch.manual_seed(3)
        expected = pytree.tree_leaves(layer(x, *arguments))
        torch.testing.assert_close(actual, expected)
        assert [t.stride() for t in actual] == [t.stride() for t in expected]
        if train:
            parameters = list(layer.parameters())
            actual_gradients, expected_gradients = (
                torch.autograd.grad(sum(t.square().sum() for t in results), parameters)
                for results in (actual, expected)
            )
            torch.testing.assert_close(actual_gradients, expected_gradients)
    # On a GPU, dropout between layers runs as it is: cuDNN draws its numbers.
    info = magpy.cache_info(fast)
    drawn_by_cudnn = x.is_cuda and train and getattr(layer, "dropout", 0) > 0
    assert (info.hits, info.uncompiled) == ((0, 1) if drawn_by_cudnn else (1, 0))
    assert "raised" not in caplog.text

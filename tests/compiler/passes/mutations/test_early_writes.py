"""Writes to inputs move up in ATen graphs, behind the readers of the old values."""

import copy

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from magpy_like.compiler.passes.mutations.early_writes import write_inputs_early
from tests.compiler.passes.pass_checks import operator_names
from tests.compiler.programs import compiled

aten = torch.ops.aten


def moved(function, *inputs):
    gm = make_fx(function)(*inputs)
    changed = write_inputs_early(gm)
    gm.graph.lint()
    return changed, operator_names(gm)


def test_write_follows_the_value_written():
    def function(x, y):
        new = x.sin()
        result = y.cos().tan()
        aten.copy_(x, new)
        return result

    assert moved(function, torch.ones(2), torch.ones(2)) == (True, ["sin", "copy_", "cos", "tan"])


def test_write_stays_behind_readers_of_the_old_value():
    def function(x, y):
        new = x.sin()
        result = y.cos() * x
        aten.copy_(x, new)
        return result.tan()

    changed, names = moved(function, torch.ones(2), torch.ones(2))
    assert not changed and names == ["sin", "cos", "mul", "copy_", "tan"]


def test_write_stays_behind_operators_that_read_numbers():
    def function(x, y):
        new = x.sin()
        found = y.nonzero()
        aten.copy_(x, new)
        return found

    changed, names = moved(function, torch.ones(2), torch.ones(2))
    assert not changed and names[-2:] == ["nonzero", "copy_"]


def test_returned_old_value_and_several_writes_stay():
    def returned(x, y):
        new = x.sin()
        result = y.cos()
        aten.copy_(x, new)
        return result, x

    def twice(x, y):
        first, second = x.sin(), x.exp()
        aten.copy_(x, first)
        result = y.cos()
        aten.copy_(x, second)
        return result

    for function in (returned, twice):
        assert not moved(function, torch.ones(2), torch.ones(2))[0]


def test_running_statistics_of_many_layers_equal_eager():
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2))]
    expected = nn.Sequential(*layers).train()
    actual = copy.deepcopy(expected)
    fast = compiled(actual)
    for _ in range(3):
        x = torch.randn(3, 2, 5)
        torch.testing.assert_close(fast(x), expected(x), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(actual.state_dict(), expected.state_dict())

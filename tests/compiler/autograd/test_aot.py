"""AOTAutograd: what it leaves in the process, and results that share an argument's memory."""

import contextvars

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


def test_compiled_backward_passes_leave_no_context_variables():
    def train(factor):
        x = torch.ones(3, requires_grad=True)
        magpy.compile(lambda x: (x * factor).sin())(x).sum().backward()

    train(2.0)
    before = len(contextvars.copy_context())
    train(3.0)
    assert len(contextvars.copy_context()) == before


@pytest.mark.parametrize(
    "view", [lambda x: x.view(-1), lambda x: x[1:], lambda x: x.t()[None], lambda x: x]
)
def test_a_view_of_an_argument_that_a_varying_number_scales_shares_its_memory(view):
    def program(x, factor):
        x.mul_(factor * 0.5)
        return view(x), x + 1

    fast = magpy.compile(program)
    for factor in (1, 2, 3, 4):
        x, y = torch.arange(4.0), torch.arange(4.0)
        assert_same([fast(x, factor), x], [program(y, factor), y])


def written_and_viewed(x):
    x.add_(1)
    y = x * 2
    return y, y[1:], x.view(-1)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: (torch.from_numpy(np.arange(3.0)).sum() + x.cpu(),),
        lambda x: (x * x.sin(),),
        written_and_viewed,
    ],
)
def test_tensors_of_varying_sizes_get_no_attributes(program, gradients):
    fast = magpy.compile(program)
    for size in (2, 3, 4, 5, 6):
        x = torch.ones(size, requires_grad=gradients) * 1
        assert [vars(tensor) for tensor in (x, *fast(x))] == [{}] * (len(program(x)) + 1)
    assert magpy.cache_info(fast).hits

"""AOTAutograd: what it leaves in the process, and results that share an argument's memory."""

import contextvars

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

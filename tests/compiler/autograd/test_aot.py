"""AOTAutograd leaves nothing in the process."""

import contextvars

import torch

import magpy_like as magpy


def test_compiled_backward_passes_leave_no_context_variables():
    def train(factor):
        x = torch.ones(3, requires_grad=True)
        magpy.compile(lambda x: (x * factor).sin())(x).sum().backward()

    train(2.0)
    before = len(contextvars.copy_context())
    train(3.0)
    assert len(contextvars.copy_context()) == before

"""Dynamo traces programs, but no code of this compiler."""

import os
import warnings

import pytest
import torch
from torch._dynamo import convert_frame

import magpy_like as magpy
from magpy_like.compiler import dynamo_backend


def trains(x):
    w = torch.ones(5, requires_grad=True)
    (x * w).sin().sum().backward()
    return w.grad * 2


def trains_with_a_view(x):
    w = torch.ones(5, requires_grad=True)
    products, view = product_and_view(x, w)
    (products.sum() + view.sum()).backward()
    return w.grad * 2


def product_and_view(x, w):
    return (x * w).sin(), w.view(-1)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 2

    @staticmethod
    def backward(ctx, gx, gy):
        return gx * 2, gy * 2


def trains_through_custom_function(x):
    w = torch.ones(5, requires_grad=True)
    doubled, _ = Doubled.apply(w, w * 3)
    (x * doubled).sin().sum().backward()
    return w.grad * 2


def traced_project_frames(program, calls=3):
    """The functions of this project that Dynamo traces in some calls of ``program``. Asserts that
    each call equals eager, without warnings."""
    torch._dynamo.reset()
    fast = torch.compile(program, backend=dynamo_backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "magpy_like: .* overlaps with torch.compile")
        for k in range(calls):
            x = torch.arange(20.0).reshape(4, 5) + k
            torch.testing.assert_close(fast(x), program(x))
    traced = (seen() for seen in convert_frame.input_codes.seen)
    package = os.path.dirname(magpy.__file__)
    return [code for code in traced if code and code.co_filename.startswith(package)]


@pytest.mark.parametrize("program", [trains, trains_with_a_view, trains_through_custom_function])
def test_dynamo_does_not_trace_backward_passes(program):
    assert traced_project_frames(program) == []


def test_dynamo_does_not_trace_compiled_programs():
    inner = magpy.compile(product_and_view)

    def program(x):
        products, view = inner(x + 1, torch.ones(5))
        return products.sum() + view.sum()

    assert traced_project_frames(program) == []
    assert (
        magpy.cache_info(inner).hits >= 4
    )  # calls by eager and three calls under Dynamo, except one

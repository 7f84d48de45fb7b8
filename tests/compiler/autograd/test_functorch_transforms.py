"""Compiled graphs under forward-mode differentiation and under functorch's transforms."""

import pytest
import torch
from torch import func, fx
from torch.autograd import forward_ad

from magpy_like.compiler import compile_fx, dynamo_backend
from tests.compiler.programs import seeded


def program(x, w):
    return (torch.tanh(x @ w) * x.sum(1, keepdim=True)).softmax(1)


def view(x, w):
    return (x * w).t(), x.view(-1)


def traced(function, *inputs):
    return compile_fx(fx.symbolic_trace(function), inputs, options={"strict": True})


def captured(function, *inputs):
    torch._dynamo.reset()
    return torch.compile(function, backend=dynamo_backend)


def with_tangent(function, x, w, tangent):
    with forward_ad.dual_level():
        results = function(forward_ad.make_dual(x, tangent), w)
        results = results if isinstance(results, tuple) else (results,)
        return [tuple(forward_ad.unpack_dual(result)) for result in results]


def inputs(requires_grad=False):
    x, w = seeded(4, 4), seeded(4, 4, seed=1)
    return x.requires_grad_(requires_grad), w.requires_grad_(requires_grad), seeded(4, 4, seed=2)


@pytest.mark.parametrize("compile", [traced, captured])
@pytest.mark.parametrize("function", [program, view])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_forward_mode_tangents_equal_eager(compile, function, requires_grad, warm):
    x, w, tangent = inputs(requires_grad)
    fast = compile(function, x, w)
    if warm:
        fast(x, w)
    for _ in range(2):
        expected = with_tangent(function, x, w, tangent)
        torch.testing.assert_close(with_tangent(fast, x, w, tangent), expected)
    torch.testing.assert_close(fast(x, w), function(x, w))


def random_program(x, w):
    return torch.nn.functional.dropout(x.exp() * w, 0.5)


@pytest.mark.cpu  # torch has no tangents of dropout's gradients on a GPU
@pytest.mark.parametrize("function", [program, random_program])
def test_tangents_of_gradients_equal_eager(function):
    x, w, tangent = inputs(requires_grad=True)
    fast, found = traced(function, x, w), []
    for call in (function, fast):
        torch.manual_seed(0)
        result = call(x, w)
        with forward_ad.dual_level():
            upstream = forward_ad.make_dual(torch.ones(4, 4), tangent)
            (gradient,) = torch.autograd.grad(result, x, upstream)
            found.append(tuple(forward_ad.unpack_dual(gradient)))
    torch.testing.assert_close(found[1], found[0])


def reshaped_before_a_write(x, w):
    """The graph may not end before the view, which AOTAutograd makes again."""
    doubled = x * w
    turned = doubled.t().reshape(4, 4)
    doubled.mul_(2)
    return turned, doubled


def test_unsupported_tangents_of_gradients_raise():
    x, w, tangent = inputs(requires_grad=True)
    result, _ = traced(reshaped_before_a_write, x, w)(x, w)
    with forward_ad.dual_level():
        upstream = forward_ad.make_dual(torch.ones(4, 4), tangent)
        with pytest.raises(RuntimeError, match="gradients with tangents"):
            torch.autograd.grad(result, w, upstream)


def test_tangents_of_gradients_raise_where_the_program_cannot_run_again():
    x, w, tangent = inputs(requires_grad=True)
    fast = traced(lambda x, w: (x.exp() * w).tanh(), x * 1, w)
    result = fast(x * 1, w)  # the argument is gone
    with forward_ad.dual_level():
        upstream = forward_ad.make_dual(torch.ones(4, 4), tangent)
        with pytest.raises(RuntimeError, match="gradients with tangents"):
            torch.autograd.grad(result, w, upstream)


TRANSFORMS = {
    "grad": lambda f, x, w, t: func.grad(lambda x: f(x, w).sum())(x),
    "jvp": lambda f, x, w, t: func.jvp(lambda x: f(x, w), (x,), (t,)),
    "vjp": lambda f, x, w, t: func.vjp(lambda x: f(x, w), x)[1](t),
    "vmap": lambda f, x, w, t: func.vmap(f, in_dims=(0, None))(torch.stack([x, t]), w),
    "hessian": lambda f, x, w, t: func.hessian(lambda x: f(x, w).sum())(x),
}


@pytest.mark.parametrize("compile", [traced, captured])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_transforms_of_a_compiled_graph_equal_eager(compile, transform, requires_grad):
    x, w, tangent = inputs(requires_grad)
    fast = compile(program, x, w)
    for _ in range(2):
        expected = transform(program, x, w, tangent)
        torch.testing.assert_close(transform(fast, x, w, tangent), expected)

"""Compiled functions under forward-mode differentiation and functorch transforms."""

import pytest
import torch
from torch.autograd import forward_ad

import magpy_like as magpy


def program(x, w):
    return (torch.tanh(x @ w) * x.sum(1, keepdim=True)).softmax(1)


def inputs():
    return torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)


def tangent_of(function, x, w, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent), w)).tangent


@pytest.mark.parametrize("backend", ["magpy", "aot_eager"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_tangents_propagate(backend, warm, requires_grad):
    x, w, tangent = inputs()
    w.requires_grad_(requires_grad)
    fast = magpy.compile(program, backend=backend)
    if warm:
        fast(x, w)
    for _ in range(3):
        expected = tangent_of(program, x, w, tangent)
        torch.testing.assert_close(tangent_of(fast, x, w, tangent), expected)


def test_tangents_of_external_tensors_propagate():
    x, w, tangent = inputs()
    held = {"w": w}
    fast = magpy.compile(lambda x: x @ held["w"])
    for _ in range(2):
        fast(x)
    with forward_ad.dual_level():
        held["w"] = forward_ad.make_dual(w, tangent)
        found = forward_ad.unpack_dual(fast(x)).tangent
    torch.testing.assert_close(found, x @ tangent)


@pytest.mark.parametrize("backend", ["magpy", "aot_eager"])
def test_program_that_splits_inside_a_dual_level(backend):
    def split(x, w, tangent):
        y = x.sin() * 2
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            z = (dual @ w).sin() * dual
            print(end="")
            z = z.sin() * y
            print(end="")
            primal, found = forward_ad.unpack_dual(z.cos() * 2)
            result = (found * 2 + primal).cos()
        return result, y

    arguments = inputs()
    fast = magpy.compile(split, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(fast(*arguments), split(*arguments))


def test_calls_under_transforms_run_natively_and_do_not_prevent_recording():
    x, w, tangent = inputs()
    fast = magpy.compile(program, fullgraph=True)
    for _ in range(5):
        for call in (
            lambda f: torch.func.grad(lambda x: f(x, w).pow(2).sum())(x),
            lambda f: torch.func.jvp(lambda x: f(x, w), (x,), (tangent,)),
            lambda f: torch.func.vmap(f, in_dims=(0, None))(torch.stack([x, tangent]), w),
        ):
            torch.testing.assert_close(call(fast), call(program))
    for _ in range(3):
        torch.testing.assert_close(fast(x, w), program(x, w))
    assert magpy.cache_info(fast) == magpy.CacheInfo(
        hits=2, misses=1, records=1, graphs=1, native=15
    )

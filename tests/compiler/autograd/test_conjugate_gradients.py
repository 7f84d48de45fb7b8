"""Backward passes of results that are conjugate or negative views."""

import itertools

import pytest
import torch

import magpy_like as magpy


def conjugate(x):
    return torch.outer(x, x), torch.complex(x, x).conj()


def imaginary(x):
    z = torch.complex(x, 2 * x).conj()
    return z.imag, z, z.imag.sin()


def negative_and_conjugate(x):
    z = torch._neg_view(torch.complex(x, 2 * x)).conj()
    return z, z.imag, z * 2, torch.view_as_real(z.resolve_conj().resolve_neg())


def transposed(x):
    return torch.complex(x, 2 * x).conj().reshape(1, -1).mT, x * 2


def gradient(program, chosen, weight):
    leaf = torch.linspace(-1, 1, 5).requires_grad_()
    results = program(leaf * 1)
    bits = [(r.is_conj(), r.is_neg(), r.dtype) for r in results]
    loss = 0.0
    for result in itertools.compress(results, chosen):
        scaled = result * weight if result.is_complex() else result
        loss = loss + scaled.real.exp().sum() + scaled.abs().square().sum()
    loss.backward()
    return leaf.grad, bits


@pytest.mark.parametrize("weight", [1.0, 1 + 2j])
@pytest.mark.parametrize("program", [conjugate, imaginary, negative_and_conjugate, transposed])
@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_gradients_equal_eager_for_each_set_of_results(backend, program, weight):
    fast = magpy.compile(program, backend=backend)
    count = len(program(torch.ones(5)))
    for chosen in itertools.product([False, True], repeat=count):
        if any(chosen):
            expected, bits = gradient(program, chosen, weight)
            actual, found = gradient(fast, chosen, weight)
            torch.testing.assert_close(actual, expected)
            assert found == bits

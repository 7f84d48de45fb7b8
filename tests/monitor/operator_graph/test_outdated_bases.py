"""Views in other memory than their base, after ``view.data = value`` or ``view.set_(value)``."""

import pytest
import torch

import magpy_like as magpy


def set_amid_writes(x, other):
    x.mul_(2)
    x.set_(torch.sin(x))
    x.add_(1)
    return other * 2


def replaced_amid_writes(x, other):
    other.mul_(2)
    x.data = torch.sin(x).detach()
    x.add_(1)
    return x * 1, other[1:]


def written_in_turn(x, other):
    x.mul_(other)
    other.mul_(x)
    return x + other


def written_alone(x, other):
    x.add_(1)
    return other * 2


def viewed(x, other):
    return x[1:], other.view(-1)


def base_and_view():
    x = torch.tensor([1.0, -2, 3])
    return x, x[:]


def two_views():
    x = torch.tensor([1.0, -2, 3, 4])
    return x[:3], x[1:]


def two_views_with_gradients():
    x = torch.tensor([1.0, -2, 3, 4], requires_grad=True) * 1
    return x[:3], x[1:]


def first_replaced(x, other):
    x.data = torch.sin(x).detach()
    return x, other


def second_replaced(x, other):
    other.data = torch.sin(x).detach()
    return x, other


def observe(program, x, other):
    """Values, versions and gradients of the results and arguments."""
    results = program(x, other)
    results = results if isinstance(results, tuple) else (results,)
    inputs = [t for t in (x, other) if t.requires_grad]
    gradients = None
    if inputs:
        total = sum(t.sum() for t in results)
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    seen = (*results, x, other)
    return [(t.detach(), t._version, t.requires_grad) for t in seen], gradients


def assert_same_as_eager(program, make, backend):
    fast = magpy.compile(program, backend=backend)
    expected = observe(program, *make())
    for _ in range(3):
        torch.testing.assert_close(observe(fast, *make()), expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("make", [base_and_view, two_views])
@pytest.mark.parametrize("program", [set_amid_writes, replaced_amid_writes])
def test_views_part_within_a_program(program, make, backend):
    assert_same_as_eager(program, make, backend)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("change", [first_replaced, second_replaced])
@pytest.mark.parametrize("make", [base_and_view, two_views, two_views_with_gradients])
@pytest.mark.parametrize("program", [written_in_turn, written_alone, viewed])
def test_views_have_parted_before_a_program(program, make, change, backend):
    assert_same_as_eager(program, lambda: change(*make()), backend)

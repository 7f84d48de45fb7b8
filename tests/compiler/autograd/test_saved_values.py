"""What a forward pass leaves to its backward pass is what it was when it was used."""

import pytest
import torch

from tests.compiler.programs import compiled, seeded


def with_gaps(t):
    return torch.cat([t, t], 1)[:, : t.shape[1]]


def by_columns(t):
    return t.t().contiguous().t()


LAYOUTS = {"dense": lambda t: t * 1, "by columns": by_columns, "with gaps": with_gaps}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def is_updated(x, w):
    y = x * w.clone()
    w.add_(1)
    return y


def is_updated_and_used(x, w):
    y = x * w.clone().t()
    w.add_(1)
    return y + w * 2


def a_view_is_saved(x, w):
    y = x @ w.clone()
    w.mul_(2)
    return y


def a_copy_of_a_view_is_saved(x, w):
    y = x.sin() @ w.t().clone()
    w.mul_(2)
    return y


@layouts
@pytest.mark.parametrize("trains", [False, True], ids=["fixed", "trained"])
@pytest.mark.parametrize(
    "function", [is_updated, is_updated_and_used, a_view_is_saved, a_copy_of_a_view_is_saved]
)
def test_a_copy_of_what_the_program_writes_to_later(function, trains, layout):
    seen = []
    for call in (compiled(function), function):
        x = seeded(4, 4).requires_grad_()
        w = seeded(4, 4, seed=1).requires_grad_(trains)
        given = layout(w) if trains else layout(w).clone(memory_format=torch.preserve_format)
        result = call(x, given)
        gradients = torch.autograd.grad(result.sum(), [x, w] if trains else [x])
        seen.append((result, given, gradients))
    torch.testing.assert_close(*seen)


def test_operators_that_check_for_errors_write_to_nothing():
    """They are told to run in order, by an operator of which nothing is known."""
    x = seeded(4, 4).requires_grad_()
    (actual,), (expected,) = (
        torch.autograd.grad(call(x).sum(), x)
        for call in (compiled(torch.linalg.inv), torch.inverse)
    )
    torch.testing.assert_close(actual, expected)


@layouts
def test_an_argument_that_nobody_writes_to_is_saved_itself(layout):
    """A result of which others are views has a base, which is no new value of an argument."""

    def function(x):
        y = x.sin()[:]
        y.mul_(2)
        return y, y[1:]

    x = layout(seeded(4, 4)).requires_grad_()
    kept = []

    def keep(t):
        kept.append(t.data_ptr())
        return t

    call = compiled(function)
    call(x)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        result = call(x)[0]
    assert kept == [x.data_ptr()]
    (actual,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(actual, 2 * x.detach().cos())


def test_writes_to_what_a_saved_view_shows_are_noticed():
    call = compiled(lambda x, w: x.sin() @ w)  # saves w, transposed
    x, w = seeded(5, 5).requires_grad_(), seeded(5, 5)
    y = call(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writes_to_a_result_of_which_a_view_is_saved_are_noticed():
    def function(x, w):
        y = (x * w).exp()
        return y, y.t() @ w

    x, w = seeded(5, 5).requires_grad_(), seeded(5, 5).requires_grad_()
    y, z = compiled(function)(x, w)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()

"""Saved tensors of a forward pass keep the values that they had when they were used."""

import pytest
import torch

import magpy_like as magpy
from tests.compiler.programs import compiled, seeded


def with_gaps(t):
    return torch.cat([t, t], 1)[:, : t.shape[1]]


def column_major(t):
    return t.t().contiguous().t()


LAYOUTS = {"dense": lambda t: t * 1, "column-major": column_major, "with gaps": with_gaps}
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
def test_copy_of_a_tensor_mutated_later_is_saved(function, trains, layout):
    seen = []
    for call in (compiled(function), function):
        x = seeded(4, 4).requires_grad_()
        w = seeded(4, 4, seed=1).requires_grad_(trains)
        argument = layout(w) if trains else layout(w).clone(memory_format=torch.preserve_format)
        result = call(x, argument)
        gradients = torch.autograd.grad(result.sum(), [x, w] if trains else [x])
        seen.append((result, argument, gradients))
    torch.testing.assert_close(*seen)


def test_error_checking_operators_write_to_nothing():
    """They are ordered by an operator with unknown effects."""
    x = seeded(4, 4).requires_grad_()
    (actual,), (expected,) = (
        torch.autograd.grad(call(x).sum(), x)
        for call in (compiled(torch.linalg.inv), torch.inverse)
    )
    torch.testing.assert_close(actual, expected)


@layouts
def test_unmutated_argument_is_saved_without_a_copy(layout):
    """The base of a result with views is not the new value of an argument."""

    def function(x):
        y = x.sin()[:]
        y.mul_(2)
        return y, y[1:]

    x = layout(seeded(4, 4)).requires_grad_()
    saved_pointers = []

    def pack(t):
        saved_pointers.append(t.data_ptr())
        return t

    call = compiled(function)
    call(x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = call(x)[0]
    assert saved_pointers == [x.data_ptr()]
    (actual,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(actual, 2 * x.detach().cos())


def test_writes_to_the_base_of_a_saved_view_are_detected():
    call = compiled(lambda x, w: x.sin() @ w)  # saves w, transposed
    x, w = seeded(5, 5).requires_grad_(), seeded(5, 5)
    y = call(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writes_to_a_result_with_a_saved_view_are_detected():
    def function(x, w):
        y = (x * w).exp()
        return y, y.t() @ w

    x, w = seeded(5, 5).requires_grad_(), seeded(5, 5).requires_grad_()
    y, z = compiled(function)(x, w)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def _through_data(x):
    x.data[:1].mul_(2)
    return x * 3


def _through_nested_data(x):
    x.data.data.add_(1)
    return x.sum()


def _of_one_of_two(x):
    x.data.add_(1)
    return x * x.detach()


@pytest.mark.parametrize("program", [_through_data, _through_nested_data, _of_one_of_two])
def test_writes_through_data_are_not_counted(program):
    """Autograd then does not notice that a tensor saved before has changed."""

    def outcome(call):
        leaf = seeded(3, 4).requires_grad_()
        x = leaf * 1
        before, version = x.sin(), x._version
        result = call(x)
        (before.sum() + result.sum()).backward()
        return x, leaf.grad, x._version - version

    fast = magpy.compile(program)
    for _ in range(3):
        torch.testing.assert_close(outcome(fast), outcome(program))

"""Gradients through arguments that a program writes to, of varying sizes, equal eager's."""

import numpy as np
import pytest
import torch

import magpy_like as magpy

SIZES = (4, 4, 6, 6, 7, 4)


def _reads_itself(x):
    x.add_(torch.from_numpy(np.arange(3.0)).to(x.dtype).sum() + x)
    return x[:0]


def _twice(x):
    x.add_(x)
    x.mul_(x + 1)
    return x.exp()


def _adds_its_sum(x):
    x.add_(x.sum() + x)
    return x * x


def _through_views(x):
    x[1:].add_(x[:-1] * 2)
    return x.sum()


def _returns_a_view(x):
    y = x.view(-1)
    y.add_(y * 2)
    return y[1:]


def _overwrites(x):
    y = x * 2 + x.mean()
    x.copy_(y)
    return y + x


def _through_detach(x):
    x.detach().add_(1)
    return x * 2


def _without_gradients(x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


def _before_a_loop(x):
    x.add_(x + 1)
    return torch.stack([row * 2 for row in x])


def _through_a_view_of_detach(x):
    x.detach()[1:].mul_(x.detach()[:-1].clone())
    return x.exp()


def _through_detach_and_without_gradients(x):
    x.detach()[0] = 3
    with torch.no_grad():
        x.mul_(2)
    return x * x


def _through_detach_between_recorded_writes(x):
    x.mul_(2)
    x.detach().add_(1)
    x.mul_(3)
    return x.exp()


def _makes_detached_memory_require_gradients(x):
    y = x.detach()
    y.mul_(x.clone())
    return y * 2


PROGRAMS = (
    _reads_itself, _twice, _adds_its_sum, _through_views, _returns_a_view, _overwrites,
    _through_detach, _without_gradients, _before_a_loop, _through_a_view_of_detach,
    _through_detach_and_without_gradients, _through_detach_between_recorded_writes,
    _makes_detached_memory_require_gradients,
)  # fmt: skip
ARGUMENTS = {
    "result": lambda leaf: leaf * 1,
    "view": lambda leaf: (leaf * 1)[1:],
    "every second": lambda leaf: (leaf * 1)[::2],
}


def _gradients(call, argument, size, with_gradients):
    """The argument after the call and the result, and the gradients through each and both."""
    leaf = torch.linspace(0.1, 0.9, size).requires_grad_(with_gradients)
    x = argument(leaf)
    roots = [call(x), x]
    found = [root.detach().clone() for root in roots]
    if with_gradients:
        for chosen in (roots[:1], roots[1:], roots):
            loss = sum((root**2).sum() for root in chosen)
            found += torch.autograd.grad(loss, [leaf], retain_graph=True)
    return found


@pytest.mark.parametrize("begins_without_gradients", [False, True])
@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_gradients_through_a_written_argument_equal_eager(
    backend, program, argument, begins_without_gradients
):
    fast = magpy.compile(program, backend=backend)
    if begins_without_gradients:
        _gradients(fast, argument, 5, False)
    for size in SIZES:
        actual = _gradients(fast, argument, size, True)
        torch.testing.assert_close(actual, _gradients(program, argument, size, True))


def test_one_graph_serves_writes_to_arguments_of_varying_size():
    fast = magpy.compile(_twice)
    for size in SIZES:
        _gradients(fast, ARGUMENTS["result"], size, True)
    assert magpy.cache_info(fast).misses == 2


@pytest.mark.parametrize("is_leaf", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        _through_detach, _without_gradients, _through_a_view_of_detach,
        _through_detach_and_without_gradients,
    ],
)  # fmt: skip
def test_write_that_autograd_does_not_record_keeps_the_argument_in_its_graph(program, is_leaf):
    fast = magpy.compile(program)
    for size in SIZES:
        found = []
        for call in (fast, program):
            leaf = torch.linspace(0.1, 0.9, size, requires_grad=True)
            x = leaf if is_leaf else leaf * 1
            function = x.grad_fn
            result = call(x)
            assert x.grad_fn is function and x._version
            found.append([*torch.autograd.grad(result.sum(), [x]), x._version])
        torch.testing.assert_close(*found)


def test_backward_pass_raises_if_a_detached_write_has_overwritten_what_it_needs():
    def program(x):
        y = x * x
        x.detach().add_(1)
        return y

    fast = magpy.compile(program)
    for size in SIZES:
        result = fast(torch.ones(size, requires_grad=True) * 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def added_to(x, w):
    with torch.no_grad():
        x.add_(1)
    return x * x * w


def zeroed(x, w):
    with torch.no_grad():
        x.zero_()
    return x * w + x * 2


def replaced(x, w):
    with torch.no_grad():
        x.copy_(w)
    return (x * w).sin()


def added_to_a_row(x, w):
    row = x[:1]
    with torch.no_grad():
        row.add_(1)
    return x * x * w


@pytest.mark.parametrize("is_leaf", [False, True], ids=["computed", "leaf"])
@pytest.mark.parametrize("program", [added_to, zeroed, replaced, added_to_a_row])
def test_arguments_written_without_gradients_have_gradients_of_gradients(program, is_leaf):
    def gradients(function):
        leaf = torch.tensor([1.5, 0.5], dtype=torch.float64, requires_grad=True)
        w = torch.tensor([0.75, 0.25], dtype=torch.float64, requires_grad=True)
        x = leaf if is_leaf else leaf * 1.5
        loss = function(x, w).square().sum() + x.pow(3).sum()
        first = torch.autograd.grad(loss, [leaf, w], create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), [leaf, w])]

    fast = magpy.compile(program)
    for _ in range(3):
        torch.testing.assert_close(gradients(fast), gradients(program))

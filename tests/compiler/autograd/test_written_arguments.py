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


PROGRAMS = (
    _reads_itself, _twice, _adds_its_sum, _through_views, _returns_a_view, _overwrites,
    _through_detach, _without_gradients, _before_a_loop,
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

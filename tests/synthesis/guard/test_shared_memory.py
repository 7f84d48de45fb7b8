"""Tensors changed in place, and other tensors that share their memory, always or at some calls."""

import pytest
import torch

from tests.programs import Twins, tensor

BACKENDS = ["eager", "aot_eager", "magpy"]


def _x():
    return tensor(1.0, -2.0, 3.0)


def _twice():
    x = _x()
    return x, x


def _adjacent():
    x = torch.arange(6.0)
    return x[:3], x[3:]


def _overlapping():
    x = torch.arange(6.0)
    return x[:3], x[1:4]


def _twins(program, *calls, backend):
    twins = Twins(lambda: program, backend=backend)
    for _ in range(2):
        for i, inputs in enumerate(calls):
            twins.call(inputs, why=f"call {i}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("view", [lambda x: x.view(-1), lambda x: x[:2], lambda x: x.view(3, 1)])
def test_view_of_a_changed_argument_is_a_view(backend, view):
    def program(x):
        x.mul_(2)
        return view(x), x + 1

    _twins(program, lambda: (_x(),), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_arguments_that_share_memory(backend):
    def program(a, b):
        a.mul_(2)
        return a + b, a.view(-1), b[:2]

    calls = [lambda: (_x(), _x()), _twice, _adjacent, _overlapping]
    _twins(program, *calls, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_argument_that_shares_memory_with_a_parameter_at_some_calls(backend):
    def make():
        layer = torch.nn.Linear(3, 3).requires_grad_(False)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.ones_(layer.bias)
        replacement = {}

        def program(x):
            x = replacement.get("x", x)
            x.add_(1)
            return x * layer.weight.sum() + layer.bias, layer.weight * 2

        program.layer, program.replacement = layer, replacement
        return program

    twins = Twins(make, backend=backend)
    changes = [
        lambda p: p.replacement.update(x=_x()),
        lambda p: p.replacement.update(x=p.layer.weight[0]),
        lambda p: p.replacement.update(x=p.layer.bias),
        lambda p: p.replacement.update(x=_x()),
    ]
    for i, change in enumerate(changes):
        twins.change(change)
        for j in range(2):
            twins.call(lambda: (_x(),), why=f"change {i}, call {j}")

"""A TorchScript function is one operator where it is a line of operators without effects."""

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from tests.programs import Twins, matrix


@torch.jit.script
def swish(x, beta: float = 1.0):
    return x.mul((x * beta).sigmoid())


@torch.jit.script
def mish(x):
    return x * torch.tanh(F.softplus(x)), x.view(x.size(0), -1)


def _traced(x):
    return x * 2 + torch.ones(3)


traced = torch.jit.trace(_traced, torch.zeros(3))


@torch.jit.script
def branches(x):
    if bool(x.sum() > 0):
        return x + 1
    return x - 1


@torch.jit.script
def changes(x):
    x.add_(1)
    return x * 2


@torch.jit.script
def draws(x):
    return x + torch.rand_like(x)


@torch.jit.script
def picks(x):
    return x[x > 0]


@torch.jit.script
def counts(x):
    return x * 2, int(x.sum())


@torch.jit.script
def says(x):
    print(x.dim())
    return x * 2


OPERATORS = {
    "script": lambda x: swish(x) + 1,
    "arguments": lambda x: swish(x, beta=2.0),
    "two results, one a view": lambda x: mish(x),
    "traced": lambda x: traced(x),
}
MORE = {
    "branches": lambda x: branches(x),
    "changes": lambda x: changes(x),
    "draws": lambda x: draws(x),
    "picks": lambda x: picks(x).shape[0] * x,
    "counts": lambda x: x * counts(x)[1],
    "says": lambda x: says(x),
}


def inputs():
    return (matrix(2, 3, grad=True),)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_captured(name, backend):
    twins = Twins(lambda: OPERATORS[name], backend=backend, fullgraph=True)
    twins.call(inputs, hit=False, backward=True)
    twins.call(inputs, hit=True, backward=True)


def test_sizes_may_vary():
    twins = Twins(lambda: lambda x: mish(x)[1].shape[0] * swish(x), dynamic=True)
    for rows in (2, 3, 5, 7):
        twins.call(lambda rows=rows: (matrix(rows, 4),))


def test_another_function_is_noticed():
    functions = [swish]
    fast = magpy.compile(lambda x: functions[0](x), backend="eager")
    x = matrix()
    assert torch.equal(fast(x), swish(x))
    functions[0] = traced
    assert torch.equal(fast(x), traced(x))


@pytest.mark.parametrize("name", MORE)
def test_what_is_more_than_an_operator_is_called_as_it_is(name):
    def make():
        return MORE[name]

    def plain():
        return (matrix(),)

    twins = Twins(make)
    for _ in range(3):
        twins.call(plain)
    twins.call(lambda: (-matrix(),))
    report = magpy.explain(MORE[name], matrix())
    assert any("TorchScript" in str(point.reason) for point in report.split_points)

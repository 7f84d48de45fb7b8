"""Custom functions are compiled only if their backward passes depend on their arguments alone."""

import math
import random

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.graph_operators.node_metadata import AS_IS
from tests.compare import assert_same

LOG, BUFFER, STATE = [], torch.zeros(3), {"count": 0, "scale": 2.0}
SCALE = 2.0


class Settings:
    scale = 3.0


def clamped(gradient):
    return gradient.clamp(-1, 1)


def scaled(gradient):
    return gradient * SCALE


def log(ctx, gradient):
    LOG.append(1)
    return gradient * len(LOG)


def write(ctx, gradient):
    BUFFER.add_(1)
    return gradient * BUFFER


def count(ctx, gradient):
    STATE["count"] += 1
    return gradient * STATE["count"]


def count_in_variable(ctx, gradient):
    global SCALE
    SCALE += 1
    return gradient


def read_in_inner_function(ctx, gradient):
    return [scaled(g) for g in (gradient,)][0]


def closure():
    count = 0

    def backward(ctx, gradient):
        nonlocal count
        count += 1
        return gradient * count

    return backward


DEPENDENT = {
    "appends": lambda: log,
    "class attribute": lambda: lambda ctx, gradient: gradient * Settings.scale,
    "closure": closure,
    "gradient mode": lambda: lambda ctx, gradient: gradient * (1 + torch.is_grad_enabled()),
    "in a function": lambda: read_in_inner_function,
    "once differentiable": lambda: once_differentiable(log),
    "random number": lambda: lambda ctx, gradient: gradient * random.random(),
    "reads a number": lambda: lambda ctx, gradient: gradient * SCALE,
    "sets a global": lambda: count_in_variable,
    "sets an entry": lambda: count,
    "writes to a tensor": lambda: write,
}
"""Functions that make backward passes."""
INDEPENDENT = {
    "builtins": lambda ctx, gradient: gradient * float(len(gradient.shape)),
    "functional": lambda ctx, gradient: F.relu(gradient),
    "in a function": lambda ctx, gradient: [clamped(g) for g in (gradient,)][0],
    "mathematics": lambda ctx, gradient: gradient * math.sqrt(2) * math.pi,
    "method": lambda ctx, gradient: gradient.neg(),
    "once differentiable": once_differentiable(lambda ctx, gradient: clamped(gradient)),
    "operator": lambda ctx, gradient: torch.where(gradient > 0, gradient.to(torch.float32), 0),
}


def program_with(backward):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    Doubled.backward = staticmethod(backward)
    return lambda x: Doubled.apply(x.sin()) + 1


def observe(call):
    global SCALE
    SCALE, STATE["count"] = 2.0, 0
    LOG.clear()
    BUFFER.zero_()
    random.seed(0)
    found = []
    for number in range(4):
        SCALE += number
        Settings.scale = number
        x = torch.ones(3, requires_grad=True)
        call(x).sum().backward()
        found.append((x.grad, len(LOG), BUFFER.clone(), STATE["count"], SCALE, random.random()))
    return found


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("backward", DEPENDENT.values(), ids=DEPENDENT)
def test_state_that_a_backward_pass_reads_or_changes(backward, backend):
    expected = observe(program_with(backward()))
    run = magpy.compile(program_with(backward()), backend=backend)
    assert_same(observe(run), expected)
    assert magpy.cache_info(run).hits > 0


@pytest.mark.parametrize("backward", INDEPENDENT.values(), ids=INDEPENDENT)
def test_backward_pass_of_its_arguments_alone_is_compiled(backward):
    program = program_with(backward)
    run = magpy.compile(program)
    assert_same(observe(run), observe(program))
    graphs = magpy.explain(run, torch.ones(3)).graphs
    assert graphs
    assert not any(AS_IS in node.meta for graph in graphs for node in graph.graph.nodes)

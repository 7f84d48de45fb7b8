"""Inputs of an operator graph that are fixed objects: they are bound to the graph's callable."""

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.synthesis.mock.mock_builder import MIN_KNOWN_INPUTS
from tests.compare import assert_same
from tests.programs import matrix


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(MIN_KNOWN_INPUTS)))


def mock_source(fast):
    (record,) = fast._magpy.records
    return record.mock_source


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_parameters_are_bound_and_read_at_each_call(backend):
    eager, fast = model(), magpy.compile(model(), backend=backend)
    x = matrix(2, 3)
    assert_same(fast(x), eager(x))
    assert "run_graph(v1)" in mock_source(fast)
    for _ in range(3):
        for parameters in (eager.parameters(), fast.parameters()):
            with torch.no_grad():
                for parameter in parameters:
                    parameter.mul_(0.5)
                    parameter.data = parameter.data + 1  # in other memory
        assert_same(fast(x), eager(x))
    assert magpy.cache_info(fast).misses == 1


def test_gradients_reach_bound_parameters():
    eager, fast = model(), magpy.compile(model())
    for _ in range(3):
        for one in (eager, fast):
            one(matrix(2, 3)).sum().backward()
        for a, b in zip(fast.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_replaced_parameter_is_not_taken_for_the_bound_one():
    eager, fast = model(), magpy.compile(model(), backend="eager")
    x = matrix(2, 3)
    for _ in range(2):
        assert_same(fast(x), eager(x))
        for one in (eager, fast):
            one[0].weight = nn.Parameter(2 * one[0].weight.detach())
    assert_same(fast(x), eager(x))
    assert magpy.cache_info(fast).misses == 3


def test_few_fixed_inputs_are_written_out():
    fast = magpy.compile(nn.Linear(3, 3), backend="eager")
    fast(matrix(2, 3))
    assert "run_graph(v1, parameter" in mock_source(fast)

"""Early checks: speculation on a tensor's value before external tensors are written."""

import copy

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


def clipped(weight, gradient):
    norm = gradient.norm().item()
    scale = 0.5 / norm if norm > 0.5 else 1.0
    weight.sub_(gradient, alpha=scale)
    return norm


def checked(weight, gradient):
    if gradient.isnan().any():
        return weight * 0
    weight.add_(gradient)
    return weight * 2


def after_a_draw(weight, gradient):
    noise = torch.rand(2)
    if (gradient + noise * 0).sum() > 1:
        weight.add_(noise)
    else:
        weight.sub_(noise).mul_(2)
    return noise


def listed(weight, gradient):
    signs = (gradient > 0).int().tolist()
    weight.mul_(1 + sum(signs))
    return signs


def between_writes(weight, gradient):
    weight.add_(gradient)
    if weight.sum() > 3:
        weight.zero_()
    return weight + 1


PROGRAMS = [clipped, checked, after_a_draw, listed, between_writes]
LARGE, SMALL = torch.tensor([3.0, 4.0]), torch.tensor([-0.1, 0.1])
NOT_FINITE = torch.tensor([float("nan"), 1.0])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_in_place_writes_happen_once_whether_or_not_speculation_holds(program):
    fast = magpy.compile(program, backend="eager")
    mine = torch.ones(2)
    theirs = copy.deepcopy(mine)
    for gradient in (LARGE, LARGE, SMALL, LARGE, NOT_FINITE, SMALL, SMALL, LARGE):
        torch.manual_seed(0)
        result = fast(mine, gradient)
        state = torch.get_rng_state()
        torch.manual_seed(0)
        assert_same(result, program(theirs, gradient))
        assert torch.equal(state, torch.get_rng_state())
        assert_same(mine, theirs)
    assert magpy.cache_info(fast).hits >= 3


@pytest.mark.parametrize("program", [clipped, checked, after_a_draw, listed])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_speculating_program_is_one_graph_and_hits_from_the_second_call_on(program, backend):
    fast = magpy.compile(program, backend=backend, fullgraph=True)
    mine = torch.ones(2)
    theirs = copy.deepcopy(mine)
    for _ in range(3):
        torch.manual_seed(0)
        result = fast(mine, SMALL)
        torch.manual_seed(0)
        assert_same(result, program(theirs, SMALL))
    assert_same(mine, theirs)
    assert magpy.cache_info(fast)[:4] == (2, 1, 1, 1)


def test_misspeculation_leaves_no_effects():
    fast = magpy.compile(clipped, backend="eager")
    weight = torch.ones(2)
    fast(weight, LARGE)
    version, before = weight._version, weight.clone()
    record = magpy.api._dispatcher(fast).records[0]
    failure = record.mock(*record.guard((weight, SMALL), {}))
    assert failure.position[:2] == (__file__, "clipped")
    assert weight._version == version and torch.equal(weight, before)

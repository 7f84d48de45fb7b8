"""Tensors that are changed in place: leaves of autograd's graph at some calls, not at others."""

import itertools

import pytest
import torch

import magpy_like as magpy

ROLES = {
    "not a leaf": lambda leaf: leaf * 1,
    "a view": lambda leaf: (leaf * 1).view(6),
    "a view of a leaf": lambda leaf: leaf.view(6),
    "a leaf": lambda leaf: leaf,
}


def recorded(x, w):
    x.mul_(2)
    return x * w


def detached(x, w):
    x.detach()[:2].mul_(2)
    return x * w


def through_data(x, w):
    x.data.mul_(2)
    return x * w


def unrecorded(x, w):
    with torch.no_grad():
        x.mul_(2)
    return x * w


def caught(x, w):
    try:
        x.add_(1)
    except RuntimeError:
        return x * w * 0
    return x * w


def _outcome(call, role):
    leaf, w = torch.arange(6.0).requires_grad_(), torch.ones(6, requires_grad=True)
    x = ROLES[role](leaf)
    try:
        result = call(x, w)
        (result.sum() + (x * x).sum()).backward()
    except RuntimeError as error:
        return str(error)
    return [None if t is None else t.tolist() for t in (result, x, leaf.grad, w.grad)]


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("program", [recorded, detached, through_data, unrecorded, caught])
def test_each_role_has_the_outcome_of_eager(program, backend):
    for first, second in itertools.permutations(ROLES, 2):
        fast = magpy.compile(program, backend=backend)
        for role in (first, first, second, second, first):
            assert _outcome(fast, role) == _outcome(program, role), (first, second, role)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_leaf_is_refused_where_the_program_detaches_it_after_the_write(backend):
    def program(x, z):
        x.mul_(2)
        with torch.no_grad():
            z = z if x.sum() > 0 else w
        x.detach_()
        return 1

    w = torch.ones(3, requires_grad=True)
    fast = magpy.compile(program, backend=backend)
    for is_leaf in (False, True, False, True):
        x, z = (torch.arange(3.0, requires_grad=True) for _ in range(2))
        if not is_leaf:
            assert fast(x * 1, z * 1) == 1
            continue
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            fast(x, z)

"""Writes of values that require gradients to detached tensors: each tensor has its own gradient."""

import warnings

import pytest
import torch

import magpy_like as magpy
from magpy_like.torch_compat import pytree

WEIGHT = torch.full((1,), 3.0, requires_grad=True)


class Holder:
    value = None


HOLDER = Holder()


def returned(x):
    v = x.detach()
    v.mul_(WEIGHT).add_(1)
    return v, [v]


def of_the_argument_itself(x):
    v = x.detach()
    v.mul_(x)
    return v


def of_a_row(x):
    v = x.detach()[0]
    v.mul_(WEIGHT)
    return v


def row_detached(x):
    v = x[0].detach()
    v.mul_(WEIGHT)
    return v, x * 2


def by_subscript(x):
    v = x.detach()
    v[0] = WEIGHT
    return v


def to_a_row(x):
    v = x.detach()
    v[0].mul_(WEIGHT)
    return v


def copied(x):
    v = x.detach()
    v.copy_(WEIGHT)
    return v


def with_the_argument(x):
    v = x.detach()
    v.mul_(WEIGHT)
    return v, x, v * x


def two_detached(x):
    v, other = x.detach(), x.detach()
    v.mul_(WEIGHT)
    return v, other, v[0]


def left_in_an_attribute(x):
    HOLDER.value = x.detach()
    HOLDER.value.mul_(WEIGHT)


def dropped(x):
    v = x.detach()
    v.mul_(WEIGHT)
    return x * 2


def of_an_intermediate(x):
    base = x * 2
    v = base.detach()
    v.mul_(WEIGHT)
    return v, base


def under_no_grad(x):
    with torch.no_grad():
        v = x[0].detach()
    v.mul_(WEIGHT)
    return v


def repeated(x):
    v = x.detach()
    for _ in range(3):
        v.mul_(WEIGHT)
    return v


def in_a_branch(x):
    v = x.detach()
    if x.sum() > 0:
        v.mul_(WEIGHT)
    return v


def detached_again(x):
    v = x.detach()
    v.mul_(WEIGHT)
    return v.detach(), v


def of_an_unused_intermediate(x):
    v = (x * 2).detach()
    v.mul_(WEIGHT)
    return v


def of_plain_values(x):
    base = x * WEIGHT
    base.detach().mul_(2)
    return base


def made_a_leaf(x):
    v = x.detach().requires_grad_()
    return v, v * 2


def after_reads_of_a_detached_tensor(x):
    y = x * WEIGHT
    mean = y.detach().mean()
    y.mul_(WEIGHT)
    return y, mean


WRITING = (
    returned, of_the_argument_itself, of_a_row, row_detached, by_subscript, to_a_row, copied,
    with_the_argument, two_detached, left_in_an_attribute, dropped, of_an_intermediate,
    under_no_grad, repeated, in_a_branch, detached_again,
)  # fmt: skip
COMPILED = (
    of_an_unused_intermediate, of_plain_values, made_a_leaf, after_reads_of_a_detached_tensor,
)  # fmt: skip


def observe(function, columns, grad):
    """What a caller sees of the argument, the results and of gradients."""
    leaf = torch.arange(1.0, 1 + 2 * columns).reshape(2, columns).requires_grad_(grad)
    x = leaf * 1
    HOLDER.value = None
    results = function(x)
    seen = []
    for each in (x, *pytree.tree_leaves(results), HOLDER.value):
        if each is not None:
            seen.append((each.tolist(), each._version, each.requires_grad, each.is_leaf, each is x))
            if each.requires_grad:
                total = (each * each).sum()
                sources = [source for source in (leaf, WEIGHT) if source.requires_grad]
                seen.append(torch.autograd.grad(total, sources, None, True, allow_unused=True))
    return str(seen)


@pytest.mark.parametrize("grad", [True, False], ids=["argument with gradients", "without"])
@pytest.mark.parametrize("program", [*WRITING, *COMPILED], ids=lambda f: f.__name__)
def test_written_detached_tensors_have_the_gradients_of_eager_mode(program, grad):
    fast = magpy.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", magpy.MagpyWarning)
        for columns in (3, 3, 3, 4, 5):
            assert observe(fast, columns, grad) == observe(program, columns, grad)


@pytest.mark.parametrize("program", COMPILED, ids=lambda f: f.__name__)
def test_detached_tensors_without_gradients_from_writes_are_compiled(program):
    fast = magpy.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", magpy.MagpyWarning)
        for _ in range(3):
            observe(fast, 3, True)


def test_written_detached_tensor_is_the_reason_why_a_graph_runs_operator_by_operator():
    with pytest.warns(magpy.MagpyWarning, match="requires gradients to detached memory"):
        fast = magpy.compile(lambda x: returned(x))
        for _ in range(2):
            fast(torch.ones(2, 3, requires_grad=True) * 1)

"""Custom functions of autograd receive what a branch returns.

Their code may change its arguments in every way: they must be the tensors that the program has.
"""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


def custom_function(forward):
    class Custom(torch.autograd.Function):
        """Triples the gradient."""

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    Custom.forward = staticmethod(forward)
    return Custom.apply


def set_data(ctx, x):
    x.data = x.detach() * 2
    return x * 1


def set_attribute(ctx, x):
    x.tag = 7
    return x * 1


def set_hook(ctx, x):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 5)
    return x * 1


def write(ctx, x):
    ctx.mark_dirty(x)
    return x.mul_(2)


def write_to_a_view(ctx, x):
    ctx.mark_dirty(x)
    x[1:].mul_(2)
    return x


def write_in_an_inner_function(ctx, x):
    return custom_function(write)(x) * 2


def keep(ctx, x):
    return x


FORWARDS = (
    keep, set_attribute, set_data, set_hook, write, write_in_an_inner_function, write_to_a_view,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("forward", FORWARDS)
def test_changes_reach_the_tensor_of_the_program(forward, requires_grad, backend):
    apply = custom_function(forward)

    def program(x):
        y = x if x.sum() > 0 else x * 2
        return apply(y), y, x * 1

    def observe(call, sign):
        leaf = (torch.tensor([1.0, 2.0, 3.0]) * sign).requires_grad_(requires_grad)
        x = leaf * 1
        results = call(x)
        if requires_grad:
            sum(result.sum() for result in results).backward()
        tags = [getattr(tensor, "tag", None) for tensor in (x, *results)]
        same = [result is x for result in results]
        return results, x, x._version, leaf.grad, tags, same

    run = magpy.compile(program, backend=backend)
    for sign in (1, -1, 1, -1):
        assert_same(observe(run, sign), observe(program, sign))
    assert magpy.cache_info(run).hits > 0


def test_new_tensor_of_a_branch_stays_in_the_graph():
    """Only what the branch may return without having made it is another object in a record."""
    apply = custom_function(keep)

    def program(x):
        y = x.sin() if x.sum() > 0 else x.cos()
        return apply(y) + 1

    run = magpy.compile(program)
    for sign in (1, -1, 1):
        x = torch.ones(3) * sign
        assert_same(run(x), program(x))
    info = magpy.cache_info(run)
    assert (info.graphs, info.hits, info.records) == (1, 2, 1)

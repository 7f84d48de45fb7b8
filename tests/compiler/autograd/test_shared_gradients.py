"""Leaves whose gradients are in one memory get memory of their own, as in eager mode."""

import pytest
import torch

import magpy_like as magpy
from tests.compiler.programs import seeded


def concatenated_sum(a, b):
    return torch.cat([a + b, torch.ones(1, 3)]).exp()


def stacked_sum(a, b):
    return torch.stack([a + b, a.new_zeros(2, 3)]).exp()


def transposed_sum(a, b):
    return (a + b).t().exp()


def flattened_sum(a, b):
    return (a + b).flatten().exp()


def scattered_sum(a, b):
    return torch.slice_scatter(torch.zeros(4, 3), a + b, 0, 1, 3).exp()


def sum_with_one_of_other_sizes(a, b):
    return (a.view(6) + b.view(-1)[:6]).view(3, 2).exp()


def sum_with_view(a, b):
    return (a + b.flatten().view(a.shape)).exp()


def sum_with_part(a, b):
    return (a + torch.cat([b[:1], torch.zeros(1, 3)])).exp()


def plain_sum(a, b):
    return a + b


def sum_with_views_as_results(a, b):
    total = torch.cat([a + b, torch.ones(1, 3)]).exp()
    return total, total.view(-1), total[0]


PROGRAMS = [
    concatenated_sum, stacked_sum, transposed_sum, flattened_sum, scattered_sum,
    sum_with_one_of_other_sizes, sum_with_view, sum_with_part, plain_sum,
    sum_with_views_as_results,
]  # fmt: skip


def share_memory(tensors):
    return [[t.data_ptr() == other.data_ptr() for other in tensors] for t in tensors]


def compare(program, observe, *sizes):
    """Asserts that ``observe(function, *leaves)``, for leaves of these sizes, finds the same with
    the compiled program as in eager mode, in several calls."""
    fast = magpy.compile(program)
    for _ in range(3):
        leaves = [[seeded(*s, seed=k).requires_grad_() for k, s in enumerate(sizes)] for _ in "ab"]
        expected, actual = observe(program, *leaves[0]), observe(fast, *leaves[1])
        torch.testing.assert_close(actual, expected)
        assert share_memory(actual) == share_memory(expected)


def result(function, *leaves):
    found = function(*leaves)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_two_leaves_accumulate_apart(program):
    def accumulate(function, *leaves):
        for _ in range(2):
            result(function, *leaves).sum().backward()
        leaves[0].grad.mul_(3)
        return [leaf.grad for leaf in leaves]

    compare(program, accumulate, (2, 3), (2, 3))


@pytest.mark.parametrize("program", PROGRAMS)
def test_incoming_gradient_that_the_caller_keeps_is_no_gradient_of_a_leaf(program):
    def accumulate(function, *leaves):
        found = result(function, *leaves)
        incoming = torch.ones_like(found)
        found.backward(incoming, retain_graph=True)
        found.backward(incoming)
        return [*(leaf.grad for leaf in leaves), incoming, found.detach()]

    compare(program, accumulate, (2, 3), (2, 3))


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradient_of_two_tensors_is_one_tensor(create_graph):
    def grad(function, *leaves):
        found = result(function, *leaves)
        gradients = torch.autograd.grad(found.sum(), leaves, create_graph=create_graph)
        assert gradients[0] is gradients[1]
        return [g.detach() for g in gradients]

    compare(concatenated_sum, grad, (2, 3), (2, 3))


def test_leaves_of_several_sizes_whose_gradients_are_views_of_one_another_accumulate_apart():
    def program(a, b, c):
        both = a + b.view(2, 3)
        return torch.cat([both, both.view(3, 2).t() + c]).exp()

    def accumulate(function, *leaves):
        for _ in range(2):
            result(function, *leaves).sum().backward()
        torch.nn.utils.clip_grad_norm_(leaves, 0.1)
        return [leaf.grad for leaf in leaves]

    compare(program, accumulate, (2, 3), (6,), (2, 3))


def test_gradients_in_parts_of_one_memory_are_not_copied():
    a, b = (torch.ones(n, 3, requires_grad=True) for n in (2, 1))
    fast = magpy.compile(lambda: torch.cat([a, b]).exp())
    for _ in range(2):
        a.grad = b.grad = None
        fast().sum().backward()
    assert a.grad.untyped_storage().data_ptr() == b.grad.untyped_storage().data_ptr()

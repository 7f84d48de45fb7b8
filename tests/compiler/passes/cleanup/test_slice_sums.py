"""Sums of adjacent slices become one sum if the layout is not observable."""

import pytest
import torch

from tests.compiler.passes.pass_checks import operator_names, optimised_graph

A, B = torch.randn(2, 6, 3), torch.randn(2, 7, 3)


def slices(x, *bounds):
    return [x[:, a:b] for a, b in bounds]


def count_sums(function, *inputs):
    return operator_names(optimised_graph(function, *inputs)).count("add")


def add_pairwise(first, second):
    return [x + y for x, y in zip(first, second, strict=True)]


def test_sums_of_adjacent_slices_become_one():
    def function(a, b):
        bounds = (0, 1), (1, 3), (3, 6)
        return [x.exp() for x in add_pairwise(slices(a, *bounds), slices(b, *bounds))]

    assert count_sums(function, A, B) == 1
    assert count_sums(function, A.double(), B) == 1
    assert count_sums(function, A.transpose(0, 2).contiguous().transpose(0, 2), B) == 1


def test_nested_sums_of_slices_become_two():
    """Like the gradients of inputs of three concatenations."""

    def function(a, b, c):
        bounds = (0, 2), (2, 4), (4, 6)
        *first, last = add_pairwise(slices(a, *bounds), slices(b, *bounds))
        return [x.exp() for x in (*add_pairwise(first, slices(c, *bounds[:2])), last)]

    assert count_sums(function, A, B, A.sin()) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a[:, :2] + b[:, :2], a[:, 3:5] + b[:, 3:5]),
        lambda a, b: (a[:, :2] + b[:, :2], a[:, 2:4] + b[:, 3:5]),
        lambda a, b: (a[:, :2] + b[:, :2], a[:, 2:4] + a[:, 2:4]),
        lambda a, b: (a[:, :4:2] + b[:, :2], a[:, 4:6] + b[:, 2:4]),
        lambda a, b: (a[:, :1] + b[:, :3], a[:, 1:4] + b[:, 3:6]),
        lambda a, b: (a[:, :2] + b[:, :2], a[:1, :2] + b[:1, :2]),
        lambda a, b: (torch.add(a[:, :2], b[:, :2], alpha=2), a[:, 2:4] + b[:, 2:4]),
        lambda a, b: ((a[:, :2] + b[:, :2]).exp(), a[:, 2:4] + b[:, 2:4]),
    ],
    ids=["not adjacent", "shifted", "of other tensors", "steps", "broadcast", "other dimensions",
         "scaled", "sequential"],
)  # fmt: skip
def test_other_sums_are_kept(function):
    assert count_sums(lambda a, b: [x.exp() for x in function(a, b)], A, B) == 2


def test_sums_with_observable_layout_are_kept():
    def pair(a, b):
        return add_pairwise(slices(a, (0, 2), (2, 4)), slices(b, (0, 2), (2, 4)))

    assert count_sums(pair, A, B) == 2
    assert count_sums(lambda a, b: [x.view(-1).exp() for x in pair(a, b)], A, B) == 2


def test_dense_block_has_one_gradient_sum_per_layer():
    def function(x, *weights):
        maps = [x]
        for weight in weights:
            maps.append(torch.einsum("nchw,oc->nohw", torch.cat(maps, 1).sin(), weight))
        return maps[-1].sum()

    def count(layers):
        weights = [torch.randn(2, 4 + 2 * k) for k in range(layers)]
        gradients = torch.func.grad(function, tuple(range(1 + layers)))
        return count_sums(gradients, torch.randn(2, 4, 3, 3), *weights)

    assert count(8) - count(7) == count(7) - count(6)

"""Common subexpression elimination and dead code elimination."""

import torch

from tests.compiler.passes.pass_checks import operator_names, optimised_graph

X = torch.tensor([0.5, -0.0, 2.0])


def test_equal_calls_are_merged():
    assert operator_names(optimised_graph(lambda x: x.exp() + x.exp(), X)) == ["exp", "add"]


def test_equal_expressions_are_merged():
    gm = optimised_graph(lambda x: (x.exp() * 2).sin() - (x.exp() * 2).sin(), X)
    assert operator_names(gm) == ["exp", "mul", "sin", "sub"]


def test_several_results_of_one_call_are_shared():
    x = torch.randn(3, 4)
    gm = optimised_graph(lambda x: torch.max(x, 1)[0] + torch.max(x, 1)[0], x)
    assert operator_names(gm) == ["max", "add"]


def test_calls_with_arguments_of_different_type_are_not_merged():
    x = torch.tensor([1, 2])
    gm = optimised_graph(lambda x: (x * 2, x * 2.0), x)
    assert operator_names(gm) == ["mul", "mul"]
    gm = optimised_graph(lambda x: torch.copysign(x, 0.0) + torch.copysign(x, -0.0), X)
    assert operator_names(gm).count("copysign") == 2


def test_random_calls_are_not_merged():
    assert operator_names(
        optimised_graph(lambda x: torch.rand_like(x) + torch.rand_like(x), X)
    ) == [
        "rand_like",
        "rand_like",
        "add",
    ]


def test_unused_random_call_is_kept():
    def function(x):
        torch.rand_like(x)
        return torch.rand_like(x)

    assert operator_names(optimised_graph(function, X)) == ["rand_like", "rand_like"]


def test_two_returned_tensors_are_not_merged():
    assert operator_names(optimised_graph(lambda x: (x.exp(), x.exp()), X)) == ["exp", "exp"]
    assert operator_names(optimised_graph(lambda x: (x.exp(), x.exp().view(3, 1)), X)) == [
        "exp",
        "exp",
        "view",
    ]


def test_unreturned_tensor_is_merged_with_a_returned_one():
    gm = optimised_graph(lambda x: (x.exp() * 3, x.exp(), x.exp()), X)
    assert operator_names(gm).count("exp") == 2


def test_calls_before_and_after_a_mutation_are_not_merged():
    def function(x):
        first = x.exp()
        x.add_(1)
        return first - x.exp()

    assert operator_names(optimised_graph(function, X, functional=False)).count("exp") == 2


def test_calls_before_and_after_a_mutation_through_a_view_are_not_merged():
    def function(x):
        first = x.exp()
        x[1:].mul_(3)
        return first - x.exp()

    assert operator_names(optimised_graph(function, X, functional=False)).count("exp") == 2


def test_mutated_results_are_not_merged():
    def function(x):
        a, b = x.exp(), x.exp()
        a.add_(1)
        return a * b

    assert operator_names(optimised_graph(function, X, functional=False)).count("exp") == 2


def test_unused_calls_are_removed():
    def function(x):
        x.exp()
        return x.sin()

    assert operator_names(optimised_graph(function, X)) == ["sin"]


def test_mutation_of_an_input_is_kept():
    def function(x):
        x.mul_(2)
        return x.sin()

    assert "mul_" in operator_names(optimised_graph(function, X, functional=False))

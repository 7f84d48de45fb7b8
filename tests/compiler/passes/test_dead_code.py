"""Common subexpressions and dead code."""

import torch

from tests.compiler.passes.pass_checks import names, optimised

X = torch.tensor([0.5, -0.0, 2.0])


def test_equal_calls_are_made_once():
    assert names(optimised(lambda x: x.exp() + x.exp(), X)) == ["exp", "add"]


def test_whole_equal_trees_are_computed_once():
    gm = optimised(lambda x: (x.exp() * 2).sin() - (x.exp() * 2).sin(), X)
    assert names(gm) == ["exp", "mul", "sin", "sub"]


def test_several_results_of_one_call_are_shared():
    x = torch.randn(3, 4)
    gm = optimised(lambda x: torch.max(x, 1)[0] + torch.max(x, 1)[0], x)
    assert names(gm) == ["max", "add"]


def test_arguments_equal_in_value_but_not_in_type_make_two_calls():
    x = torch.tensor([1, 2])
    gm = optimised(lambda x: (x * 2, x * 2.0), x)
    assert names(gm) == ["mul", "mul"]
    gm = optimised(lambda x: torch.copysign(x, 0.0) + torch.copysign(x, -0.0), X)
    assert names(gm).count("copysign") == 2


def test_random_calls_are_each_made():
    assert names(optimised(lambda x: torch.rand_like(x) + torch.rand_like(x), X)) == [
        "rand_like",
        "rand_like",
        "add",
    ]


def test_a_random_call_nobody_reads_still_advances_the_generator():
    def function(x):
        torch.rand_like(x)
        return torch.rand_like(x)

    assert names(optimised(function, X)) == ["rand_like", "rand_like"]


def test_two_returned_tensors_stay_two():
    assert names(optimised(lambda x: (x.exp(), x.exp()), X)) == ["exp", "exp"]
    assert names(optimised(lambda x: (x.exp(), x.exp().view(3, 1)), X)) == ["exp", "exp", "view"]


def test_three_equal_tensors_of_which_two_are_returned_stay_two():
    gm = optimised(lambda x: (x.exp() * 3, x.exp(), x.exp()), X)
    assert names(gm).count("exp") == 2


def test_a_write_in_between_makes_equal_calls_different():
    def function(x):
        first = x.exp()
        x.add_(1)
        return first - x.exp()

    assert names(optimised(function, X, functional=False)).count("exp") == 2


def test_a_write_through_a_view_counts_too():
    def function(x):
        first = x.exp()
        x[1:].mul_(3)
        return first - x.exp()

    assert names(optimised(function, X, functional=False)).count("exp") == 2


def test_a_result_that_is_written_is_not_shared():
    def function(x):
        a, b = x.exp(), x.exp()
        a.add_(1)
        return a * b

    assert names(optimised(function, X, functional=False)).count("exp") == 2


def test_what_nobody_reads_goes():
    def function(x):
        x.exp()
        return x.sin()

    assert names(optimised(function, X)) == ["sin"]


def test_a_write_into_an_input_is_not_dead():
    def function(x):
        x.mul_(2)
        return x.sin()

    assert "mul_" in names(optimised(function, X, functional=False))

"""Removal of operators without effect; operators that change a bit, a dtype or an identity stay."""

import pytest
import torch

from tests.compiler.passes.pass_checks import operator_names, optimised_graph

FLOAT = torch.tensor([[1.5, -0.0, float("nan")], [float("-inf"), 0.0, 3e38]])
INT = torch.arange(-3, 3).reshape(2, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 1,
        lambda x: 1.0 * x,
        lambda x: x / 1,
        lambda x: x - 0,
        lambda x: x - 0.0,
        lambda x: x + -0.0,
        lambda x: x**1,
        lambda x: x * torch.ones(2, 3),
        lambda x: x * torch.ones(()),
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.clone(),
        lambda x: x.expand(2, 3),
        lambda x: x.view(2, 3),
        lambda x: x.view(6).view(2, 3),
        lambda x: x.t().t(),
        lambda x: x.transpose(0, 1).permute(1, 0),
        lambda x: x.permute(0, 1),
        lambda x: x[:],
        lambda x: x[0:2, 0:3],
        lambda x: x.repeat(1, 1),
        lambda x: torch.cat([x]),
        lambda x: torch.nn.functional.pad(x, (0, 0)),
        lambda x: torch.where(x > 0, x, x),
        lambda x: -(-x),
        lambda x: x.double().float(),
        lambda x: x.detach(),
    ],
    ids=range(26),
)
def test_identity_operators_are_removed(function):
    assert operator_names(optimised_graph(lambda x: function(x).exp(), FLOAT)) == ["exp"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0,
        lambda x: x * 1,
        lambda x: x - 0,
        lambda x: x.floor(),
        lambda x: ~(~x),
        lambda x: x.round(),
    ],
    ids=range(6),
)
def test_identity_operators_of_integers_are_removed(function):
    assert operator_names(optimised_graph(lambda x: function(x).abs(), INT)) == ["abs"]


@pytest.mark.parametrize("name", ["relu", "abs", "floor", "sign"])
def test_idempotent_operators_are_applied_once(name):
    function = getattr(torch, name)
    assert operator_names(optimised_graph(lambda x: function(function(x)).exp(), FLOAT)) == [
        name,
        "exp",
    ]


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x + 0, FLOAT),  # -0.0 becomes 0.0
        (lambda x: x + 0.0, FLOAT),
        (lambda x: x - -0.0, FLOAT),
        (lambda x: x * 0, FLOAT),
        (lambda x: x * -1, FLOAT),
        (lambda x: x * 1.0, INT),  # becomes a float
        (lambda x: x / 1, INT),
        (lambda x: x * 1, INT > 0),  # becomes an int
        (lambda x: x * 1, torch.tensor([complex(float("inf"), 0.0)])),  # inf * 0 is NaN
        (lambda x: torch.add(x, 1, alpha=0), FLOAT),
        (lambda x: x.half().float(), FLOAT),
        (lambda x: x.int().float(), torch.tensor([1.5])),
        (lambda x: x[:1], FLOAT),
        (lambda x: x.expand(4, 2, 3), FLOAT),
        (lambda x: x * torch.ones(4, 2, 3), FLOAT),  # a larger result
        (lambda x: x.abs().neg().abs(), FLOAT),
        (lambda x: torch.where(x > 0, x, x.neg()), FLOAT),
    ],
    ids=range(17),
)
def test_operators_with_effect_are_kept(function, x):
    before = operator_names(optimised_graph(function, x))
    assert before, "the operator was removed"


def test_copy_with_different_strides_is_kept():
    x = torch.randn(4, 6).t()
    assert "clone" in operator_names(
        optimised_graph(lambda x: x.clone(memory_format=torch.contiguous_format).exp(), x)
    )


@pytest.mark.parametrize("function", [lambda x: x.clone(), lambda x: x * 1, lambda x: x - 0])
def test_returned_copy_is_kept(function):
    """Otherwise a mutation of the result would mutate the argument."""
    assert operator_names(optimised_graph(function, FLOAT))
    assert operator_names(optimised_graph(lambda x: function(x).view(-1), FLOAT))


def test_copy_of_a_view_of_a_copy_does_not_alias_the_argument():
    """The first copy may be removed, but not the second: the view would alias the argument."""
    x = torch.randn(3, 4)
    gm = optimised_graph(lambda x: x.clone().t().clone().t(), x)
    assert gm(x).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("copy", [lambda x: x.clone(), lambda x: x * 1, lambda x: x.view(16) - 0])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.as_strided((2, 2), (4, 1), 1) + 1,
        lambda x: torch.as_strided_copy(x, (2, 2), (4, 1), 1),
        lambda x: torch.as_strided_scatter(x, torch.zeros(2, 2), (2, 2), (4, 1), 1) + 1,
    ],
)
def test_copy_that_is_addressed_by_its_storage_is_kept(program, copy):
    x = torch.arange(20.0)[4:].view(4, 4)
    graph = optimised_graph(lambda x: program(copy(x)), x)
    assert torch.equal(graph(x), program(copy(x)))


def test_returned_view_is_kept():
    gm = optimised_graph(lambda x: (x, x.view(2, 3)), FLOAT)
    assert operator_names(gm) == ["view"]


def test_copy_before_a_mutation_is_kept():
    def function(x):
        before = x.clone()
        x.add_(1)
        return before * x

    assert "clone" in operator_names(optimised_graph(function, FLOAT, functional=False))


def test_chain_of_views_becomes_one_view():
    x = torch.randn(2, 3, 4)
    gm = optimised_graph(lambda x: x.permute(1, 0, 2).permute(2, 1, 0).exp(), x)
    assert operator_names(gm) == ["permute", "exp"]
    gm = optimised_graph(lambda x: x.view(6, 4).view(24).view(4, 6).exp(), x)
    assert operator_names(gm) == ["view", "exp"]


def test_views_that_cannot_be_combined_are_kept():
    x = torch.randn(3, 4).t()
    optimised_graph(lambda x: x.view(2, 2, 3).view(4, 3).exp(), x)

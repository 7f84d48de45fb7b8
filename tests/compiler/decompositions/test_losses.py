"""Losses look at what they are given as eager's do."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled, same, same_gradients, seeded

# Classes up to the first -1 count; what follows may name others, even ones that came before.
NAMED = torch.tensor([[1, 3, -1, 0], [-1, 2, 1, 3], [2, -1, -1, 0], [3, 2, 1, 0]])
REDUCTIONS = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])


@REDUCTIONS
def test_only_classes_before_the_first_minus_one_are_named(reduction):
    def loss(x):
        return F.multilabel_margin_loss(x, NAMED.to(x.device), reduction=reduction)

    same(loss, seeded(4, 4))
    same_gradients(loss, seeded(4, 4))


def test_classes_named_for_a_single_row():
    def loss(x):
        return F.multilabel_margin_loss(x, NAMED[0].to(x.device), reduction="none")

    same(loss, seeded(4))
    same_gradients(loss, seeded(4))


@pytest.mark.parametrize(
    ("loss", "target"),
    [(F.multilabel_margin_loss, NAMED), (F.multi_margin_loss, NAMED[3])],
    ids=["several classes", "one class"],
)
def test_a_margin_that_is_no_number_does_not_count(loss, target):
    x = seeded(4, 4)
    x[0, 2], x[2, 0] = torch.nan, torch.inf
    same(lambda x, target: loss(x, target), x, target)


@REDUCTIONS
@pytest.mark.parametrize("p", [1, 2])
def test_margins_of_one_class(p, reduction):
    weight = seeded(4, seed=1).abs()

    def loss(x):
        target = NAMED[3].to(x.device)
        plain = F.multi_margin_loss(x, target, p=p, margin=0.3, reduction=reduction)
        return plain, F.multi_margin_loss(x, target, p=p, weight=weight, reduction=reduction)

    same(loss, seeded(4, 4))
    same_gradients(lambda x: loss(x)[1], seeded(4, 4))


@pytest.mark.cpu  # a GPU gives up altogether
def test_a_class_that_there_is_not_raises():
    fast = compiled(lambda x, target: F.multi_margin_loss(x, target))
    fast(seeded(4, 4), NAMED[3].to(torch.get_default_device()))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        fast(seeded(4, 4), NAMED[2].to(torch.get_default_device()))


def test_what_may_be_named_is_told_apart():
    same(
        lambda x, named: torch.ops.aten.multilabel_margin_loss_forward(x, named, 1),
        seeded(4, 4),
        NAMED,
    )


@pytest.mark.cpu  # a GPU gives up altogether
@REDUCTIONS
@pytest.mark.parametrize("number", [-0.1, 1.1, torch.nan, torch.inf])
@pytest.mark.parametrize("which", ["input", "target"])
def test_the_cross_entropy_of_what_is_no_probability_raises(which, number, reduction):
    def loss(x, target):
        return F.binary_cross_entropy(x, target, reduction=reduction)

    x, target = torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 1.0])
    fast = compiled(loss)
    torch.testing.assert_close(fast(x, target), loss(x, target))
    (x if which == "input" else target)[1] = number
    for call in (loss, fast):
        with pytest.raises(RuntimeError, match=f"of {which} should be between 0 and 1"):
            call(x, target)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_probabilities_of_other_types(dtype):
    same(F.binary_cross_entropy, *seeded(2, 50).sigmoid().to(dtype), rtol=1e-2, atol=1e-2)

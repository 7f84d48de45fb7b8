"""Decomposed losses: target classes, margins and value checks equal eager's."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled, same, same_gradients, seeded

# Classes before the first -1 count; the entries after it are ignored, even repeated classes.
TARGET_CLASSES = torch.tensor([[1, 3, -1, 0], [-1, 2, 1, 3], [2, -1, -1, 0], [3, 2, 1, 0]])
REDUCTIONS = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])


@REDUCTIONS
def test_multilabel_margin_loss_ignores_classes_after_minus_one(reduction):
    def loss(x):
        return F.multilabel_margin_loss(x, TARGET_CLASSES.to(x.device), reduction=reduction)

    same(loss, seeded(4, 4))
    same_gradients(loss, seeded(4, 4))


def test_multilabel_margin_loss_of_a_single_row_equals_eager():
    def loss(x):
        return F.multilabel_margin_loss(x, TARGET_CLASSES[0].to(x.device), reduction="none")

    same(loss, seeded(4))
    same_gradients(loss, seeded(4))


@pytest.mark.parametrize(
    ("loss", "target"),
    [(F.multilabel_margin_loss, TARGET_CLASSES), (F.multi_margin_loss, TARGET_CLASSES[3])],
    ids=["several classes", "one class"],
)
def test_nan_margins_equal_eager(loss, target):
    x = seeded(4, 4)
    x[0, 2], x[2, 0] = torch.nan, torch.inf
    same(lambda x, target: loss(x, target), x, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), beta=2.0),
        lambda x: F.smooth_l1_loss(torch.ones_like(x), x, reduction="sum"),
        lambda x: x.logit(eps=0.1),
    ],
)
def test_gradients_of_nan_are_nan(function, dtype):
    def gradient(call):
        x = torch.tensor([torch.nan, 0.5, 3.0, torch.nan, -1.0, 0.0], dtype=dtype)
        call(x.requires_grad_()).sum().backward()
        return x.grad

    assert gradient(function).isnan().sum() >= 2
    torch.testing.assert_close(gradient(compiled(function)), gradient(function), equal_nan=True)


@REDUCTIONS
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss_equals_eager(p, reduction):
    weight = seeded(4, seed=1).abs()

    def loss(x):
        target = TARGET_CLASSES[3].to(x.device)
        plain = F.multi_margin_loss(x, target, p=p, margin=0.3, reduction=reduction)
        return plain, F.multi_margin_loss(x, target, p=p, weight=weight, reduction=reduction)

    same(loss, seeded(4, 4))
    same_gradients(lambda x: loss(x)[1], seeded(4, 4))


@pytest.mark.cpu  # a failed check leaves a GPU unusable
def test_class_out_of_range_raises():
    fast = compiled(lambda x, target: F.multi_margin_loss(x, target))
    fast(seeded(4, 4), TARGET_CLASSES[3].to(torch.get_default_device()))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        fast(seeded(4, 4), TARGET_CLASSES[2].to(torch.get_default_device()))


def test_multilabel_targets_are_marked_as_in_eager():
    same(
        lambda x, named: torch.ops.aten.multilabel_margin_loss_forward(x, named, 1),
        seeded(4, 4),
        TARGET_CLASSES,
    )


@pytest.mark.cpu  # a failed check leaves a GPU unusable
@REDUCTIONS
@pytest.mark.parametrize("number", [-0.1, 1.1, torch.nan, torch.inf])
@pytest.mark.parametrize("argument", ["input", "target"])
def test_binary_cross_entropy_of_non_probabilities_raises(argument, number, reduction):
    def loss(x, target):
        return F.binary_cross_entropy(x, target, reduction=reduction)

    x, target = torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 1.0])
    fast = compiled(loss)
    torch.testing.assert_close(fast(x, target), loss(x, target))
    (x if argument == "input" else target)[1] = number
    for call in (loss, fast):
        with pytest.raises(RuntimeError, match=f"of {argument} should be between 0 and 1"):
            call(x, target)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_binary_cross_entropy_of_other_dtypes_equals_eager(dtype):
    same(F.binary_cross_entropy, *seeded(2, 50).sigmoid().to(dtype), rtol=1e-2, atol=1e-2)

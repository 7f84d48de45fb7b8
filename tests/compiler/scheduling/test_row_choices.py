"""Scatters and gathers of one element per row, which fuse with the computation of the row."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled, kernels, same, same_gradients

SCORES, LABELS = torch.randn(60, 50), torch.randint(0, 50, (60,))


def one_hot(x, labels):
    return x - torch.zeros_like(x).scatter(1, labels[:, None], 1.0)


def scatter_added(x, labels):
    return (x * 2).scatter_add(1, labels[:, None], x[:, :1])


def scattered(x, labels):
    return x.exp().scatter(1, labels[:, None], x[:, 1:])


@pytest.mark.parametrize("function", [one_hot, scatter_added, scattered])
def test_scatter_into_rows_writes_only_the_result(function):
    matrices = [k for k in kernels(function, SCORES, LABELS) if k.size(k.ranges) == SCORES.numel()]
    assert len(matrices) == 1 and len(matrices[0].outputs) == 1
    same(function, SCORES, LABELS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
@pytest.mark.parametrize("function", [one_hot, scatter_added])
def test_scatters_of_other_dtypes_equal_eager(function, dtype):
    same(function, (SCORES * 9).to(dtype), LABELS)


def test_unmodified_zeros_keep_their_sign():
    x = torch.full((2, 3), -0.0)
    result = compiled(lambda x, i, s: (x * 1).scatter_add(1, i, s))(
        x, torch.tensor([[1], [2]]), torch.zeros(2, 1)
    )
    assert result.signbit().tolist() == [[True, False, True], [True, True, False]]


def test_scatter_along_an_outer_dimension_equals_eager():
    same(lambda x, i: (x + 1).scatter(0, i, 5.0), torch.randn(7, 40), torch.randint(0, 7, (1, 40)))


def test_scatter_into_some_rows_equals_eager():
    same(lambda x, i: (x + 1).scatter(1, i, 5.0), SCORES, torch.randint(0, 50, (30, 1)))


@pytest.mark.cpu  # a failed check leaves a GPU unusable
@pytest.mark.parametrize("invalid", [-1, 50])
@pytest.mark.parametrize("function", [one_hot, scatter_added])
def test_index_outside_of_the_row_raises(function, invalid):
    fast = compiled(function)
    scores, labels = SCORES.cpu(), LABELS.cpu().clone()
    fast(scores, labels)
    labels[7] = invalid
    for call in (function, fast):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            call(scores, labels)


def test_cross_entropy_reads_the_scores_in_one_kernel():
    found = kernels(F.cross_entropy, SCORES, LABELS)
    scores = [
        k for k in found if any(k.dtypes[b] == torch.float32 and "arg" in b for b in k.inputs)
    ]
    assert len(scores) == 1 and len(found) == 2


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_gradients_equal_eager(reduction, smoothing):
    labels = LABELS.clone()
    labels[3] = -100  # ignored
    weight = torch.rand(50)

    def loss(x):
        return F.cross_entropy(
            x * 1.5, labels, weight, reduction=reduction, label_smoothing=smoothing
        )

    same_gradients(loss, SCORES)


def test_gather_gradients_equal_eager():
    same_gradients(lambda x: (x * 2).gather(1, LABELS[:, None]).exp(), SCORES)

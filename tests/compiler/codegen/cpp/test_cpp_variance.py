"""Variance in C++ kernels where squares exceed the range of float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled, same

# Short rows, medium rows, rows longer than a block, columns, both; last, a whole tensor.
SHAPES = [((6, 8), 1), ((6, 1000), 1), ((3, 9000), 1), ((200, 24), 0), ((6, 40, 32), (0, 2)),
          ((30000,), 0)]  # fmt: skip


def variances(x, dims):
    return x.var(dims), x.std(dims), torch.var_mean(x, dims), torch.std_mean(x, dims)


@pytest.mark.parametrize("scale", [1e-37, 1e-25, 1e-19, 1e18, 1e19, 1e30])
@pytest.mark.parametrize(("shape", "dims"), SHAPES)
def test_variance_with_overflowing_or_underflowing_squares_equals_eager(shape, dims, scale):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale
    same(lambda x: variances(x, dims), x, rtol=1e-4, atol=1e-6 * scale)


@pytest.mark.parametrize(("shape", "dims"), SHAPES)
def test_mean_and_variance_with_an_infinite_element_equal_eager(shape, dims):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ahead, last = x.clone(), x.clone()
    ahead.view(-1)[0] = last.view(-1)[-1] = float("-inf")
    for one in (ahead, last, torch.full_like(x, float("inf"))):
        same(lambda x: variances(x, dims), one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "dims"), SHAPES)
def test_std_mean_without_correction_equals_eager(shape, dims):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    infinite = x.clone()
    infinite.view(-1)[0] = float("-inf")
    for one in (x * 1e-25, x * 1e30, infinite):
        same(
            lambda x: torch.std_mean(x, dims, correction=0, keepdim=True), one,
            rtol=1e-4, atol=1e-32,
        )  # fmt: skip


def test_outlier_does_not_affect_other_rows_and_blocks():
    x = torch.randn(40, 3000, generator=torch.Generator().manual_seed(0))
    x[7, 2500] = 1e25
    same(lambda x: (*variances(x, 1), *variances(x, 0)), x, rtol=1e-4, atol=1e-4)


def test_variance_of_constant_values_is_zero():
    x = torch.full((40, 3000), 0.1)
    same(lambda x: (x.var(1), x.var(0), x.var()), x, rtol=0, atol=1e-12)


def test_batch_norm_with_an_infinite_element_equals_eager():
    x = torch.randn(20, 24, 8, 8)
    x[3, 4, 5, 6] = float("inf")

    def normalised(x):
        mean, variance = torch.zeros(24), torch.ones(24)
        y = F.batch_norm(x, mean, variance, training=True)
        return y, mean, variance

    same(normalised, x, rtol=1e-4, atol=1e-4)
    same(normalised, x.to(memory_format=torch.channels_last), rtol=1e-4, atol=1e-4)


NORMALISATIONS = {
    "layer": lambda x: F.layer_norm(x, x.shape[1:]),
    "group": lambda x: F.group_norm(x, 1),
    "instance": lambda x: F.instance_norm(x[:, None]),
    "batch": lambda x: F.batch_norm(x.t(), None, None, training=True),
    "root mean square": lambda x: F.rms_norm(x - x.mean(1, keepdim=True), x.shape[1:]),
}


@pytest.mark.cpu  # kernels on a GPU add in another order
@pytest.mark.parametrize("normalise", NORMALISATIONS.values(), ids=NORMALISATIONS)
@pytest.mark.parametrize("columns", [3, 5, 7, 77, 1000, 9001])
def test_equal_values_are_zero_where_they_are_in_eager(normalise, columns):
    """A rounding error of the mean would be divided by the root of a small epsilon."""
    values = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) * 8
    x = values.expand(100, columns).contiguous()
    expected, actual = normalise(x), compiled(normalise)(x)
    assert actual.abs().max() <= expected.abs().max()

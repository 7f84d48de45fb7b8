"""Pooling with windows of any size equals eager, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import aten_fallbacks, compiled, same, same_gradients, seeded

pytestmark = pytest.mark.cpu  # measured there: which windows fall back to ATen

NAN = float("nan")


def image(*size, dtype=torch.float32):
    values = seeded(*size)
    return (values * 50).to(dtype) if not dtype.is_floating_point else values.to(dtype)


LARGE_WINDOWS = {
    "max 2d": lambda x: F.max_pool2d(x, 13, 1, 6, return_indices=True),
    "dilated": lambda x: F.max_pool2d(x, (9, 8), 2, 4, 2, return_indices=True),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (1, 2), return_indices=True),
    "uneven max": lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
}


@pytest.mark.parametrize("name", LARGE_WINDOWS)
def test_max_pooling_of_large_windows_equals_eager(name):
    x = image(2, 3, 37, 41)
    special = image(2, 1, 30, 20)
    special[0, 0, 3, 4] = special[0, 0, 25, 13] = NAN  # the last NaN of a window is chosen
    special[1] = -float("inf")  # padding is never chosen
    same(lambda *both: [LARGE_WINDOWS[name](x) for x in both], x, special)
    same(lambda *both: [LARGE_WINDOWS[name](x)[0] * 2 for x in both], x, special)
    same_gradients(lambda x: LARGE_WINDOWS[name](x)[0].sin(), x)


def test_max_pooling_in_three_dimensions_equals_eager():
    x = image(1, 2, 9, 10, 11)
    same(lambda x: F.max_pool3d(x, 5, 2, 2, return_indices=True), x)
    same(lambda x: F.adaptive_max_pool3d(x, 1, return_indices=True), x)
    same_gradients(lambda x: F.max_pool3d(x, 5, 2, 2).sin(), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bfloat16])
def test_max_pooling_of_integers_and_low_precision_equals_eager(dtype):
    x = image(1, 2, 20, 21, dtype=dtype)
    lowest = torch.full_like(x, float("-inf") if x.is_floating_point() else torch.iinfo(dtype).min)
    same(
        lambda *both: [F.max_pool2d(x, k, 2, 1, return_indices=True) for k in (3, 9) for x in both],
        x, lowest,
    )  # fmt: skip


def test_average_pooling_of_large_windows_equals_eager():
    x = image(2, 3, 25, 33)
    same_gradients(lambda x: F.avg_pool2d(x, 11, 1, 5, count_include_pad=False).sin(), x)
    same_gradients(lambda x: F.adaptive_avg_pool2d(x, (2, 3)).sin(), x)
    # Each position belongs to more windows than are unrolled.
    same_gradients(lambda x: F.adaptive_avg_pool2d(x, (26, 31)).sin(), image(1, 2, 3, 2))
    same(lambda x: F.avg_pool2d(x, 3, 2, 1), image(1, 2, 8, 9, dtype=torch.int64))
    same(lambda x: F.avg_pool2d(x, 3, 2, divisor_override=-2), image(1, 2, 8, 9, dtype=torch.int64))


def test_pooling_of_empty_batches_equals_eager():
    for rank, pool in ((2, F.adaptive_avg_pool2d), (3, F.adaptive_avg_pool3d)):
        x = torch.randn(0, 3, *[4] * rank)
        same_gradients(lambda x, pool=pool: pool(x, 2) * 2, x)
    same_gradients(lambda x: F.avg_pool3d(x, 2) + F.max_pool3d(x, 2), torch.randn(0, 3, 4, 4, 4))


def test_some_large_windows_fall_back_to_aten():
    """Maxima alone are a reduction; for indices and overlapping windows, ATen is faster."""
    x = image(1, 2, 30, 33)
    assert not aten_fallbacks(lambda x: F.adaptive_max_pool2d(x, 1), x)
    assert not aten_fallbacks(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), x)
    assert aten_fallbacks(lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True), x)
    assert aten_fallbacks(lambda x: F.max_pool2d(x, 13, 1, 6), x)


def test_fractional_max_pooling_equals_eager():
    def pooled(x, volume):
        return (
            F.fractional_max_pool2d(x, (2, 3), (5, 4), return_indices=True),
            F.fractional_max_pool2d(x[0], 2, output_ratio=(0.6, 0.5), return_indices=True),
            F.fractional_max_pool3d(volume, (2, 3, 2), (3, 1, 4), return_indices=True),
            F.fractional_max_pool3d(volume.double(), 2, 2, return_indices=True),
        )

    x, volume = image(2, 3, 11, 9), image(2, 2, 7, 8, 6)
    special = image(2, 3, 11, 9)
    special[0, 1, 3:6, 2:5] = NAN
    special[1, 2] = -float("inf")
    for images in (x, special):
        torch.manual_seed(0)
        expected = pooled(images, volume)
        torch.manual_seed(0)
        actual = compiled(pooled)(images, volume)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert aten_fallbacks(lambda *tensors: pooled(*tensors), x, volume) == ["aten.rand.default"]
    same_gradients(lambda x: F.fractional_max_pool2d(x, 3, (6, 5)).sin(), x)
    same_gradients(lambda x: F.fractional_max_pool3d(x, 2, (4, 5, 3)).sin(), volume)

"""float16 in C++ kernels: whole vectors are converted, and every step rounds as in eager."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled, same, seeded


def every_half():
    return torch.arange(2**16).to(torch.int16).view(torch.float16)


def test_every_float16_number_round_trips():
    x = every_half()
    actual = compiled(lambda x: torch.where(x == 1, x, x.roll(0)))(x)
    assert torch.equal(actual.nan_to_num(7).view(torch.int16), x.nan_to_num(7).view(torch.int16))


def test_rounding_and_overflow_equal_eager():
    """Sums of numbers of different magnitude are ties of rounding; products become subnormal."""
    x = every_half()
    for y in (x.roll(1), x.flip(0), torch.full_like(x, 2**-9), torch.full_like(x, 3.1e-3)):
        # The first result of each is an intermediate value, rounded without being stored.
        actual = compiled(lambda x, y: ((x + y).float(), (x * y).float(), x + y))(x, y)
        expected = ((x + y).float(), (x * y).float(), x + y)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(actual, expected, strict=True):
            a, b = a[~b.isnan()], b[~b.isnan()]
            assert torch.equal(a.signbit(), b.signbit())


@pytest.mark.parametrize("size", [(1, 1), (3, 17), (5, 1024), (3, 2051), (2, 3, 5, 40)], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.relu(x * 2 + 1),
        lambda x: x.softmax(-1),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: (x.sum(-1), x.amax(-1), x.argmax(-1), x.cumsum(-1)),
        lambda x: torch.cat([x, x[..., 1:] * 3], -1),
        lambda x: F.pad(x, (1, 2)) * 2,
    ],
)
def test_rows_of_any_length_equal_eager(function, size):
    same(function, torch.randn(size, dtype=torch.float16))


def test_rows_are_updated_in_place():
    def function(x, y):
        x.mul_(2).add_(y)
        return x.sum(-1), y.copy_(x)

    x, y = torch.randn(2, 7, 1300, dtype=torch.float16)
    same(function, x, y)


def test_mixed_precisions_equal_eager():
    x = torch.randn(9, 1100, dtype=torch.float16)
    same(lambda x, y: (x + y, (x * y).half(), x.double() * 2), x, torch.randn(9, 1100))
    same(lambda x, y: x + y.t(), x, torch.randn(1100, 9, dtype=torch.float16))


def test_variance_of_long_rows_equals_eager():
    x = torch.randn(4, 9000, dtype=torch.float16)
    same(lambda x: torch.var_mean(x, 1), x)


@pytest.mark.parametrize("towards", [-torch.inf, torch.inf])
def test_nextafter_steps_in_its_own_precision(towards):
    x = torch.cat([seeded(90), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1.0, 256.0])])
    x = x.to(torch.bfloat16)
    step = compiled(lambda x, y: torch.nextafter(x, y))
    exactly = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(
        step(x, torch.full_like(x, towards)),
        torch.nextafter(x, torch.full_like(x, towards)),
        **exactly,
    )

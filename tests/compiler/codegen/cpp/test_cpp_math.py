"""The elementary functions that C++ kernels bring along, over all of float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled

STRIDE = (
    1021  # of the bit patterns of float32: 4.2 million of them, both signs, NaNs and subnormals
)


def every_kind_of_float():
    bits = torch.arange(0, 2**32, STRIDE, dtype=torch.int64)
    edges = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.4e-45, -1.4e-45, 88.72284]
    edges += [88.7229, -87.33655, -103.97208, -103.972084, -104.0, 3.4028235e38, -3.4028235e38]
    return torch.cat([bits.to(torch.int32).view(torch.float32), torch.tensor(edges)])


def units_off(actual, exact):
    """How far float32 values are from float64 ones, in units in the last place of float32."""
    rounded = exact.to(torch.float32)
    one = torch.ldexp(torch.ones_like(exact), torch.frexp(rounded).exponent.clamp(min=-125) - 24)
    off = (actual.to(torch.float64) - exact).abs() / one
    return torch.where((actual == rounded) | (actual.isnan() & exact.isnan()), 0, off)


@pytest.mark.parametrize(
    ("function", "bound"),
    [(torch.exp, 1.1), (torch.log, 1.0), (torch.erf, 1.3), (torch.tanh, 1.5)],
)
def test_results_are_within_a_unit_or_so_of_the_exact_ones(function, bound):
    x = every_kind_of_float()
    off = units_off(compiled(function)(x), function(x.to(torch.float64)))
    worst = off.nan_to_num(float("inf")).max()
    assert worst <= bound, (x[off.argmax()], worst)


def test_powers_of_what_is_at_most_zero_are_as_exact():
    """A softmax's: down to the smallest subnormal, infinities and NaN included."""
    x = every_kind_of_float()
    x = x[~(x > 0)]
    rows = torch.stack([torch.where(x.isinf(), x, x.clamp(min=-200)), torch.zeros_like(x)], 1)
    power = compiled(lambda x: x.softmax(-1))(rows)[:, 0]
    torch.testing.assert_close(power, rows.softmax(-1)[:, 0], rtol=3e-7, atol=1e-44, equal_nan=True)


def test_logarithms_of_sums_of_powers_are_as_exact_as_their_type():
    """A logarithmic softmax's powers are only added up: each to 1, and many of one size."""
    x = every_kind_of_float()
    x = x[~(x > 0)]
    x = torch.where(x.isinf(), x, x.clamp(min=-200))
    one = torch.stack([x, torch.zeros_like(x)], 1)
    many = torch.cat([one, x[:, None].expand(-1, 30)], 1)[:: 64 + 1]
    among_none = F.pad(one[:: 64 + 1], (14, 23), value=-float("inf"))
    for rows in one, many, among_none:
        result = compiled(lambda x: x.log_softmax(-1))(rows)
        expected = rows.double().log_softmax(-1).float()
        torch.testing.assert_close(result, expected, rtol=2e-7, atol=4e-7, equal_nan=True)


@pytest.mark.parametrize("function", [torch.erf, torch.tanh, F.gelu])
def test_zeros_keep_their_sign(function):
    x = torch.tensor([0.0, -0.0])
    assert compiled(function)(x).signbit().tolist() == [False, True]


@pytest.mark.parametrize("count", [1, 7, 15, 17, 33])
@pytest.mark.parametrize("function", [torch.exp, torch.erf, torch.tanh, torch.sigmoid, F.gelu])
def test_the_rest_of_a_vector_is_computed_alike(function, count):
    """A result depends on its element only, not on where in memory that is."""
    x = torch.linspace(-6, 6, 64)
    whole = compiled(function)(x)
    torch.testing.assert_close(compiled(function)(x[:count].clone()), whole[:count], rtol=0, atol=0)


def test_gelu_is_at_least_as_exact_as_eagers():
    x = torch.linspace(-9, 9, 1_000_001)
    exact = F.gelu(x.to(torch.float64))
    error, eagers = ((y - exact).abs() / x.abs() for y in (compiled(F.gelu)(x), F.gelu(x)))
    assert error.nan_to_num(0).max() <= max(eagers.nan_to_num(0).max(), 2.5e-7)


def test_gelu_has_the_sign_of_its_argument_and_ends_exactly():
    """The distribution is neither below 0 nor above 1, in any of the floats where it comes near."""
    first, last = (torch.tensor(x).view(torch.int32).item() for x in (5.0, 6.0))
    x = torch.arange(first, last, dtype=torch.int32).view(torch.float32)
    gelu = compiled(F.gelu)
    below, above = gelu(-x), gelu(x)
    assert (below <= 0).all() and (above <= x).all()
    assert (below[x >= 5.23] == 0).all() and (above[x >= 5.23] == x[x >= 5.23]).all()


@pytest.mark.parametrize("value", [float("nan"), -20.0, -6.0, 20.0, 3e38])
def test_gelu_far_from_zero(value):
    x = torch.full([33], value)
    expected = x * torch.special.ndtr(x)
    torch.testing.assert_close(compiled(F.gelu)(x), expected, equal_nan=True)

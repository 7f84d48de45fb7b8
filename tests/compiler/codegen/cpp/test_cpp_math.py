"""Elementary functions of the C++ prelude, over the whole range of float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.programs import compiled

STRIDE = (
    1021  # of the bit patterns of float32: 4.2 million of them, both signs, NaNs and subnormals
)


def sampled_floats():
    bits = torch.arange(0, 2**32, STRIDE, dtype=torch.int64)
    edges = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.4e-45, -1.4e-45, 88.72284]
    edges += [88.7229, -87.33655, -103.97208, -103.972084, -104.0, 3.4028235e38, -3.4028235e38]
    return torch.cat([bits.to(torch.int32).view(torch.float32), torch.tensor(edges)])


def ulp_distance(actual, exact):
    """How far float32 values are from float64 ones, in units in the last place of float32."""
    rounded = exact.to(torch.float32)
    one = torch.ldexp(torch.ones_like(exact), torch.frexp(rounded).exponent.clamp(min=-125) - 24)
    off = (actual.to(torch.float64) - exact).abs() / one
    return torch.where((actual == rounded) | (actual.isnan() & exact.isnan()), 0, off)


@pytest.mark.parametrize(
    ("function", "bound"),
    [(torch.exp, 1.1), (torch.log, 1.0), (torch.erf, 1.3), (torch.tanh, 1.5)],
)
def test_elementary_functions_are_accurate(function, bound):
    x = sampled_floats()
    off = ulp_distance(compiled(function)(x), function(x.to(torch.float64)))
    worst = off.nan_to_num(float("inf")).max()
    assert worst <= bound, (x[off.argmax()], worst)


def test_exponentials_of_nonpositive_numbers_are_accurate():
    """As in a softmax: down to the smallest subnormal, with infinities and NaN."""
    x = sampled_floats()
    x = x[~(x > 0)]
    rows = torch.stack([torch.where(x.isinf(), x, x.clamp(min=-200)), torch.zeros_like(x)], 1)
    power = compiled(lambda x: x.softmax(-1))(rows)[:, 0]
    torch.testing.assert_close(power, rows.softmax(-1)[:, 0], rtol=3e-7, atol=1e-44, equal_nan=True)


def test_log_sum_exp_is_as_accurate_as_its_dtype():
    """The exponentials of a log-softmax are only summed: each added to 1, and many equal ones."""
    x = sampled_floats()
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
def test_signed_zeros_are_preserved(function):
    x = torch.tensor([0.0, -0.0])
    assert compiled(function)(x).signbit().tolist() == [False, True]


@pytest.mark.parametrize("count", [1, 7, 15, 17, 33])
@pytest.mark.parametrize("function", [torch.exp, torch.erf, torch.tanh, torch.sigmoid, F.gelu])
def test_remainder_of_a_vector_equals_the_vector_results(function, count):
    """A result depends on its element only, not on the position in memory."""
    x = torch.linspace(-6, 6, 64)
    whole = compiled(function)(x)
    torch.testing.assert_close(compiled(function)(x[:count].clone()), whole[:count], rtol=0, atol=0)


def test_gelu_is_at_least_as_accurate_as_eager():
    x = torch.linspace(-9, 9, 1_000_001)
    exact = F.gelu(x.to(torch.float64))
    error, eager_error = ((y - exact).abs() / x.abs() for y in (compiled(F.gelu)(x), F.gelu(x)))
    assert error.nan_to_num(0).max() <= max(eager_error.nan_to_num(0).max(), 2.5e-7)


def test_gelu_keeps_the_sign_and_saturates_exactly():
    """The distribution function stays within 0 and 1 for all floats where it is close to them."""
    first, last = (torch.tensor(x).view(torch.int32).item() for x in (5.0, 6.0))
    x = torch.arange(first, last, dtype=torch.int32).view(torch.float32)
    gelu = compiled(F.gelu)
    below, above = gelu(-x), gelu(x)
    assert (below <= 0).all() and (above <= x).all()
    assert (below[x >= 5.23] == 0).all() and (above[x >= 5.23] == x[x >= 5.23]).all()


@pytest.mark.parametrize("value", [float("nan"), -20.0, -6.0, 20.0, 3e38])
def test_gelu_of_large_arguments_equals_the_exact_value(value):
    x = torch.full([33], value)
    expected = x * torch.special.ndtr(x)
    torch.testing.assert_close(compiled(F.gelu)(x), expected, equal_nan=True)

"""Numbers that vary between calls: computed as exactly as Python does."""

import math

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

ORIGIN = 2**24
"""From here on float32 has no odd integers."""

FUNCTIONS = {
    "difference": lambda x, n: x * ((n - ORIGIN) * 0.5),
    "float of a difference": lambda x, n: x * float(n - ORIGIN),
    "floor division": lambda x, n: x + (n // 3 - ORIGIN // 3) * 0.5,
    "true division": lambda x, n: x * (n / 3 - ORIGIN / 3),
    "product": lambda x, n: x * ((n * n - ORIGIN * n) * 0.25),
    "with a float": lambda x, n: x * (n * 1.5 - ORIGIN * 1.5),
    "written in place": lambda x, n: (x + 0).mul_((n - ORIGIN) * 0.5),
}


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_float_computed_from_a_large_varying_integer_is_exact(name, needs_gradient):
    function = FUNCTIONS[name]
    fast = magpy.compile(function, options={"strict": True})
    for n in range(ORIGIN + 1, ORIGIN + 11, 2):
        found = []
        for call in (fast, function):
            x = torch.ones(3, requires_grad=needs_gradient)
            result = call(x, n)
            if needs_gradient:
                result.sum().backward()
            found.append((result.detach(), x.grad))
        assert_same(*found)
    assert magpy.cache_info(fast).hits


def test_a_tensor_of_the_default_dtype_rounds_a_large_varying_integer():
    def function(x, n):
        return x * ((n - ORIGIN) * 0.5), torch.scalar_tensor(n) - ORIGIN

    fast = magpy.compile(function)
    for n in range(ORIGIN + 1, ORIGIN + 11, 2):
        assert_same(fast(torch.ones(3), n), function(torch.ones(3), n))


INFINITY = float("inf")
FLOATS = (2.0, 3.0, 0.7, -1.5, 1e30, INFINITY, float("nan"), -0.0, 0.0)

STEPS = {
    "product with zero": lambda x, s: x + 0 * s,
    "difference of equal numbers": lambda x, s: x * (s - s),
    "difference after a sum": lambda x, s: x * ((s + 1) - s),
    "product out of range": lambda x, s: x * ((s * 1e300) * 1e-300),
    "sum of three": lambda x, s: x * ((s + 0.1) + 0.2),
    "product of three": lambda x, s: x * ((s * 0.1) * 3.0),
    "difference from zero": lambda x, s: 1 / (x * (0.0 - s)),
    "sum with zero": lambda x, s: 1 / (x * (s + 0.0)),
    "negated zero": lambda x, s: 1 / (x * -(s * 0)),
    "extremes": lambda x, s: x * max(s, 0.5) + min(0.5, s),
    "floor division": lambda x, s: x * (s // 0.1),
    "remainder": lambda x, s: 1 / (x * (s % 0.5)) + x * (s % INFINITY),
    "root of a power": lambda x, s: x * (math.sqrt(abs(s)) ** 3 * 0.1 * 3.0),
    "filled tensor": lambda x, s: x + torch.full((2,), 0 * s),
    "exponent": lambda x, s: torch.pow(0 * s, x),
    "alpha": lambda x, s: torch.add(x, x, alpha=(s + 0.1) + 0.2),
    "value": lambda x, s: torch.addcmul(x, x, x, value=s - s + 1),
    "with a size": lambda x, s: x * ((x.shape[0] * 0.1 + s) - s),
}
"""Functions whose result would differ if floats were real numbers."""


@pytest.mark.parametrize("of_tensor", [False, True], ids=["argument", "item of a tensor"])
@pytest.mark.parametrize("name", STEPS)
def test_arithmetic_on_varying_floats_rounds_at_each_step(name, of_tensor):
    function = STEPS[name]

    def program(x, s):
        return function(x, s.item() if of_tensor else s)

    fast = magpy.compile(program, options={"strict": True})
    for s in FLOATS:
        number = torch.tensor(s, dtype=torch.float64) if of_tensor else s
        arguments = torch.tensor([1.0, -2.0], dtype=torch.float64), number
        assert_same(fast(*arguments), program(*arguments), rtol=0, atol=0)
    assert magpy.cache_info(fast).records == 1
    assert magpy.cache_info(fast).graphs == 1


def test_number_of_a_tensor_is_its_value_before_a_write():
    def program(x, t):
        s = t.item()
        t.add_(1)
        return x * ((s + 1) - s), t * (s - s), s + 1

    fast = magpy.compile(program, options={"strict": True})
    for s in FLOATS:
        (found, a), (expected, b) = (
            (call(torch.ones(2), t), t)
            for call, t in ((fast, torch.tensor(s)), (program, torch.tensor(s)))
        )
        assert_same((found, a), (expected, b), rtol=0, atol=0)


def test_gradients_flow_through_products_with_rounded_floats():
    def program(x, s):
        return x.square() * ((s + 1) - s)

    fast = magpy.compile(program, options={"strict": True})
    for s in FLOATS:
        found = []
        for call in (fast, program):
            x = torch.tensor([1.0, -2.0], requires_grad=True)
            call(x, s).sum().backward()
            found.append(x.grad)
        assert_same(*found, rtol=0, atol=0)


SUMS = {
    "integer": lambda x, n: x * ((n + 0.5) - n),
    "quotient of integers": lambda x, n: x * (n / (n + 2) * 3),
    "inverse": lambda x, n: x * n**-1,
    "integer of a tensor": lambda x, n: x * (torch.tensor(n).item() * 0.1 * 3.0),
    "size": lambda x, n: x * (x.new_empty(n % 1009).shape[0] * 0.7 * 3.0),
}


@pytest.mark.parametrize("name", SUMS)
def test_floats_computed_from_varying_integers_are_exact(name):
    function = SUMS[name]
    fast = magpy.compile(function)
    for n in (3, 5, 7, 11, 2**53 + 1, 2**60 + 3, 2**62 + 7):
        x = torch.tensor([1.0, -2.0], dtype=torch.float64)
        assert_same(fast(x, n), function(x, n), rtol=0, atol=0)


SIZES = {
    "products": lambda x: x.new_ones(int(x.shape[0] * 0.7 * 3.0)),
    "sum": lambda x: x.new_ones(int(x.shape[0] * 0.1 + x.shape[0] * 0.2)),
    "floor division": lambda x: x[: int((x.shape[0] * 0.1) // 0.1)] + 1,
    "quotient": lambda x: x.new_ones(math.ceil(x.shape[0] / 49 * 49.0)),
    "one product": lambda x: x.new_ones(int(x.shape[0] * 0.29)),
}


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_computed_from_floats_are_rounded_as_in_python(name, backend):
    function = SIZES[name]
    fast = magpy.compile(function, backend=backend)
    for n in range(20, 60):
        assert_same(fast(torch.ones(n)), function(torch.ones(n)))
    assert magpy.cache_info(fast).records == 1


def test_size_computed_from_a_varying_float_is_compiled():
    def program(x, s):
        return x.new_ones(int(s * 0.1 * 30.0)) * 2

    fast = magpy.compile(program, options={"strict": True})
    for s in (2.0, 3.0, 4.0, 5.0, 7.0):
        assert_same(fast(torch.ones(2), s), program(torch.ones(2), s))
    assert magpy.cache_info(fast).records == 1

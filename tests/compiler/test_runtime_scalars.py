"""Numbers that vary between calls: computed as exactly as Python does."""

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

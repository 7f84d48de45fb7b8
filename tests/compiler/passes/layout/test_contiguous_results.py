"""Results that eager mode returns contiguous are contiguous, whatever the arguments' layout."""

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy


@pytest.mark.parametrize(
    "draw",
    [
        torch.poisson,
        lambda x: torch.ops.aten.poisson.default(x),
        lambda x: torch._standard_gamma(x),
        lambda x: torch.distributions.Gamma(x, 2.0).rsample(),
        lambda x: F.one_hot(x.long(), 3),
    ],
    ids=["poisson", "overload", "gamma", "distribution", "one_hot"],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_results_are_contiguous_for_transposed_arguments(draw, gradients):
    def function(x):
        found = draw(x)
        return found, found.view(-1) + 1

    fast = magpy.compile(function)
    x = torch.rand(4, 3).t().requires_grad_(gradients)
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for argument in (x, x, x, images, images, x[:, ::2], x[:, ::2]):
        found = []
        for run in (function, fast):
            torch.manual_seed(0)
            found.append(run(argument))
        for expected, actual in zip(*found, strict=True):
            torch.testing.assert_close(actual, expected)
            assert actual.stride() == expected.stride()
    assert magpy.cache_info(fast).hits

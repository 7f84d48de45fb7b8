"""Ranks of quantiles outside of [0, 1] are refused at every call, as in eager."""

import pytest
import torch

import magpy_like as magpy
from tests.compiler.programs import seeded

pytestmark = pytest.mark.cpu  # on a GPU, eager does not check them


@pytest.fixture(autouse=True)
def _default_device():
    """Disables the fixture of the parent conftest: a default device mode prevents capture."""


CALLS = {
    "function": lambda quantile, x, q: quantile(x, q),
    "dimension": lambda quantile, x, q: quantile(x, q, dim=1, keepdim=True),
    "keyword": lambda quantile, x, q: quantile(input=x, q=q),
    "lower": lambda quantile, x, q: quantile(x, q, interpolation="lower"),
    "method": lambda quantile, x, q: getattr(x, quantile.__name__)(q),
    "out": lambda quantile, x, q: quantile(x, q, out=torch.zeros(2)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("quantile", [torch.quantile, torch.nanquantile])
def test_ranks_out_of_range_raise(quantile, call):
    def program(x, q):
        return call(quantile, x, q)

    fast = magpy.compile(program)
    x = seeded(3, 5)
    for low in (0.5, 0.0, 1.0):
        q = torch.tensor([low, 0.25])
        torch.testing.assert_close(fast(x, q), program(x, q))
    for wrong in (-1.0, -0.01, 1.01, 2.0, float("nan")):
        for each in (program, fast):
            with pytest.raises(RuntimeError, match=r"q values must be in the range \[0, 1\]"):
                each(x, torch.tensor([0.5, wrong]))


@pytest.mark.parametrize("quantile", [torch.quantile, torch.nanquantile])
def test_checked_ranks_have_gradients(quantile):
    fast = magpy.compile(lambda x, q: quantile(x, q))
    for _ in range(3):
        gradients = []
        for call in (quantile, fast):
            x, q = seeded(7).requires_grad_(), torch.tensor(0.37, requires_grad=True)
            call(x, q).backward()
            gradients.append((x.grad, q.grad))
        torch.testing.assert_close(*gradients)

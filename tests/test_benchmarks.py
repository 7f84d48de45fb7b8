"""Wrong results according to the benchmarks, which report no speed for them."""

import pytest
import torch

from benchmarks.zoo_models import is_wrong

EXACT = torch.linspace(-2, 2, 64, dtype=torch.float64)


def off_by(distance):
    """Results whose difference from ``EXACT`` has the norm ``distance``."""
    return (EXACT + distance / EXACT.numel() ** 0.5).float()


@pytest.mark.parametrize(
    "compiled, eager, wrong",
    [
        (off_by(1.9), off_by(1.0), False),
        (off_by(2.1), off_by(1.0), True),
        (off_by(1.0), EXACT.float(), True),
        (off_by(1.0).fill_(float("nan")), off_by(1.0), True),
    ],
)
def test_results_with_twice_the_error_of_eager_are_wrong(compiled, eager, wrong):
    assert is_wrong({"logits": compiled}, {"logits": eager}, lambda: {"logits": EXACT}) is wrong


def test_results_close_to_eager_need_no_exact_results():
    def exact():
        raise AssertionError("takes long")

    assert not is_wrong((off_by(1e-4), 3), (off_by(0), 3), exact)


def test_loss_close_to_an_exact_eager_loss_is_right():
    loss = torch.tensor(10.5, dtype=torch.float64)
    compiled, eager = (off_by(1.9), loss.float() + 1e-5), (off_by(1.0), loss.float())
    assert not is_wrong(compiled, eager, lambda: (EXACT, loss))

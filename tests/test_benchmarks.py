"""What the benchmarks call a wrong result, for which they give no speed."""

import pytest
import torch

from benchmarks.zoo_models import is_wrong

TRUE = torch.linspace(-2, 2, 64, dtype=torch.float64)


def off_by(distance):
    """Results whose norm of the difference from the true ones is the given one."""
    return (TRUE + distance / TRUE.numel() ** 0.5).float()


@pytest.mark.parametrize(
    "ours, eagers, wrong",
    [
        (off_by(1.9), off_by(1.0), False),
        (off_by(2.1), off_by(1.0), True),
        (off_by(1.0), TRUE.float(), True),
        (off_by(1.0).fill_(float("nan")), off_by(1.0), True),
    ],
)
def test_results_unlike_eagers_are_wrong_where_they_are_twice_as_far_from_the_exact_ones(
    ours, eagers, wrong
):
    assert is_wrong({"logits": ours}, {"logits": eagers}, lambda: {"logits": TRUE}) is wrong


def test_results_like_eagers_are_right_whatever_the_exact_ones_are():
    def exact():
        raise AssertionError("takes long")

    assert not is_wrong((off_by(1e-4), 3), (off_by(0), 3), exact)


def test_a_loss_that_is_exact_in_eager_mode_by_chance_is_not_asked_for_where_it_is_close():
    loss = torch.tensor(10.5, dtype=torch.float64)
    ours, eagers = (off_by(1.9), loss.float() + 1e-5), (off_by(1.0), loss.float())
    assert not is_wrong(ours, eagers, lambda: (TRUE, loss))

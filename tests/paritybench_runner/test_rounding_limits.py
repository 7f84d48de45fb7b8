"""What the comparison's limits let through, and what they catch: results changed on purpose.

`paritybench_runner.rounding` holds what misses torch's tolerances to how far results move under
other rounding. Here results are moved by known factors, and right programs are computed otherwise.
"""

import pytest
import torch
from torch import nn

from paritybench_runner.rounding import ELEMENT_FACTOR, NOISY_RUNS, NORM_FACTOR, is_within_rounding
from tests.paritybench_runner import planted
from tests.paritybench_runner.planted import Planted


@pytest.mark.parametrize("directions", [1, 2, 8])
def test_a_right_result_exceeds_the_limit_by_chance_once_in_thousands(directions):
    """Errors are sums of independent ones, each of which moves the result in its own direction."""
    trials, generator = 50_000, torch.Generator().manual_seed(0)
    draws = torch.randn(
        NOISY_RUNS + 1, trials, directions, generator=generator, dtype=torch.float64
    )
    ratio = draws[0].norm(dim=1) / draws[1:].abs().amax(0).norm(dim=1)
    assert float((ratio > NORM_FACTOR).double().mean()) < 1 / 3000


def test_rectifiers_that_flip_in_one_of_thousands_of_elements_are_right():
    """Each run flips some others, and moves them by as much."""
    count = 1 << 18
    flipped = round(2 * count / NOISY_RUNS / ELEMENT_FACTOR**2)
    assert flipped == 4
    generator = torch.Generator().manual_seed(0)

    def run():
        moved = 1e-7 * torch.randn(count, generator=generator, dtype=torch.float64)
        moved[torch.randperm(count, generator=generator)[:flipped]] = 1e-2
        return moved.abs()

    spread = torch.stack([run() for _ in range(NOISY_RUNS)]).amax(0)
    assert all(is_within_rounding(run(), spread) for _ in range(10))


def test_a_rectifier_that_flips_excuses_no_error_of_the_others():
    spread = torch.full((256,), 1e-7, dtype=torch.float64)
    spread[3] = 1e-2
    moved = torch.full((256,), 3e-7, dtype=torch.float64)
    moved[[7, 100]] = 1e-2
    assert is_within_rounding(moved, spread)
    assert not is_within_rounding(torch.full((256,), 1e-3, dtype=torch.float64), spread)


class Plain(nn.Module):
    """Operators whose results are as exact as their arguments."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.layers(x)


class Normalised(nn.Module):
    """Gradients that cancel before the batch norm, and rectifiers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
        )

    def forward(self, x):
        return self.layers(x.reshape(4, 3, 12, 12)).sin()


class Amplifies(nn.Module):
    """A difference of nearly equal numbers, a thousand times enlarged."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = self.layer(x)
        return ((y + 100).softmax(1) - y.softmax(1).mean(0)) * 1000 + y * 1e-3


class Faint(Plain):
    """What a layer's scale of next to nothing leaves of results and gradients."""

    def forward(self, x):
        return super().forward(x) * 1e-6


PROGRAMS = {
    Faint: lambda: ([torch.randn(32, 16)], {}),
    Plain: lambda: ([torch.randn(32, 16)], {}),
    Normalised: lambda: ([torch.randn(4, 432)], {}),
    Amplifies: lambda: ([torch.randn(32, 16)], {}),
}


def mutant(change=None, change_gradients=None):
    """A compiler whose results, gradients or buffers are changed on purpose."""

    def make(module):
        # Rounds as another order of sums does: nothing is equal to begin with.
        permuted = torch.Generator().manual_seed(1)

        def call(x):
            order = torch.randperm(len(x), generator=permuted)
            result = module(x[order])[order.argsort()]
            if change is not None:
                result = change(result)
            if change_gradients is not None:
                result.register_hook(change_gradients)
            return result

        return call

    return Planted(make)


def verdict(module, compiler):
    return planted.verdict(compiler, module, PROGRAMS[module])


@pytest.mark.parametrize("module", PROGRAMS)
def test_another_order_of_sums_is_right(module):
    assert verdict(module, mutant()) == "one_graph"


def one_element(result):
    changed = result.clone()
    changed.view(-1)[5] += 1e-3 * result.detach().abs().max()
    return changed


def two_swapped(result):
    order = torch.arange(len(result))
    order[[0, 1]] = order[[1, 0]]
    return result[order]


MUTATIONS = {
    "all off by a thousandth": mutant(lambda result: result * 1.001),
    "shifted by a thousandth": mutant(lambda result: result + 1e-3 * result.detach().abs().max()),
    "one element off by a thousandth of the largest": mutant(one_element),
    "two rows swapped": mutant(two_swapped),
    "rounded to bfloat16": mutant(lambda result: result.bfloat16().float()),
    "rounded to float16": mutant(lambda result: result.half().float()),
    "gradients twice as large": mutant(change_gradients=lambda grad: grad * 2),
    "a row without gradients": mutant(
        change_gradients=lambda grad: (
            grad * (torch.arange(len(grad)) != 1).view(-1, 1, 1, 1)
            if grad.dim() == 4
            else grad * (torch.arange(len(grad)) != 1).view(-1, 1)
        )
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("module", PROGRAMS)
def test_results_changed_on_purpose_are_wrong(module, mutation):
    assert verdict(module, MUTATIONS[mutation]) == "wrong"


@pytest.mark.parametrize(
    ("module", "unseen", "seen"),
    [(Plain, 1e-7, 1e-5), (Faint, 1e-7, 1e-5), (Normalised, 1e-7, 1e-4), (Amplifies, 1e-5, 1e-3)],
)
def test_the_smallest_error_that_is_seen_depends_on_the_program(module, unseen, seen):
    assert verdict(module, mutant(lambda result: result * (1 + unseen))) == "one_graph"
    assert verdict(module, mutant(lambda result: result * (1 + seen))) == "wrong"


def test_an_error_smaller_than_the_rounding_of_a_result_is_not_seen():
    """The softmax has no gradient here but what rounding leaves of one."""
    small = mutant(change_gradients=lambda grad: grad * 1.01)
    assert verdict(Amplifies, small) == "one_graph"
    assert verdict(Plain, small) == "wrong"
    assert verdict(Normalised, small) == "wrong"

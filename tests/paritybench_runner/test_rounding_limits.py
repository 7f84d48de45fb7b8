"""The limits of the comparison: errors that it accepts and errors that it detects.

`paritybench_runner.rounding` compares results that exceed torch's tolerances with their spread
under perturbed rounding. These tests change results by known factors, and compute correct programs
with different rounding.
"""

import pytest
import torch
from torch import nn

from paritybench_runner.rounding import ELEMENT_FACTOR, NOISY_RUNS, NORM_FACTOR, is_within_rounding
from tests.paritybench_runner import stub_compiler
from tests.paritybench_runner.stub_compiler import StubCompiler


@pytest.mark.parametrize("directions", [1, 2, 8])
def test_correct_result_rarely_exceeds_the_limit(directions):
    """Errors are sums of independent errors, each in a direction of its own."""
    trials, generator = 50_000, torch.Generator().manual_seed(0)
    draws = torch.randn(
        NOISY_RUNS + 1, trials, directions, generator=generator, dtype=torch.float64
    )
    ratio = draws[0].norm(dim=1) / draws[1:].abs().amax(0).norm(dim=1)
    assert float((ratio > NORM_FACTOR).double().mean()) < 1 / 3000


def test_rare_flips_of_rectifiers_are_within_the_limit():
    """Each run flips different elements, and moves them by equal amounts."""
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


def test_flipped_rectifier_does_not_excuse_other_errors():
    spread = torch.full((256,), 1e-7, dtype=torch.float64)
    spread[3] = 1e-2
    moved = torch.full((256,), 3e-7, dtype=torch.float64)
    moved[[7, 100]] = 1e-2
    assert is_within_rounding(moved, spread)
    assert not is_within_rounding(torch.full((256,), 1e-3, dtype=torch.float64), spread)


class Plain(nn.Module):
    """Well-conditioned operators."""

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
    """A difference of nearly equal numbers, multiplied by a thousand."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = self.layer(x)
        return ((y + 100).softmax(1) - y.softmax(1).mean(0)) * 1000 + y * 1e-3


class Faint(Plain):
    """Results and gradients multiplied by a very small scale."""

    def forward(self, x):
        return super().forward(x) * 1e-6


PROGRAMS = {
    Faint: lambda: ([torch.randn(32, 16)], {}),
    Plain: lambda: ([torch.randn(32, 16)], {}),
    Normalised: lambda: ([torch.randn(4, 432)], {}),
    Amplifies: lambda: ([torch.randn(32, 16)], {}),
}


def mutant(change=None, change_gradients=None):
    """A compiler whose results or gradients are changed on purpose."""

    def make(module):
        # A different order of sums, so that no result is exactly equal.
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

    return StubCompiler(make)


def verdict(module, compiler):
    return stub_compiler.verdict(compiler, module, PROGRAMS[module])


@pytest.mark.parametrize("module", PROGRAMS)
def test_different_order_of_sums_is_accepted(module):
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
def test_mutated_results_are_wrong(module, mutation):
    assert verdict(module, MUTATIONS[mutation]) == "wrong"


@pytest.mark.parametrize(
    ("module", "undetected", "detected"),
    [(Plain, 1e-7, 1e-5), (Faint, 1e-7, 1e-5), (Normalised, 1e-7, 1e-4), (Amplifies, 1e-5, 1e-3)],
)
def test_smallest_detected_error_depends_on_the_program(module, undetected, detected):
    assert verdict(module, mutant(lambda result: result * (1 + undetected))) == "one_graph"
    assert verdict(module, mutant(lambda result: result * (1 + detected))) == "wrong"


def test_error_below_the_rounding_of_a_result_is_not_detected():
    """The gradient of the softmax consists of rounding errors only."""
    small = mutant(change_gradients=lambda grad: grad * 1.01)
    assert verdict(Amplifies, small) == "one_graph"
    assert verdict(Plain, small) == "wrong"
    assert verdict(Normalised, small) == "wrong"

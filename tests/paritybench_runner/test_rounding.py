"""Wrong results are distinguished from rounding, which some programs amplify without bound."""

import pytest
import torch
from torch import nn

from paritybench_runner.rounding import (
    NOISY_RUNS,
    Float64Operators,
    PerturbedInputs,
    Spreads,
    is_within_rounding,
)
from tests.paritybench_runner.stub_compiler import StubCompiler, verdict


class NearlyConstant(nn.Module):
    """Batch norm divides by almost zero, and a bias before it has no influence."""

    def __init__(self, layers=(8, 8)):
        super().__init__()
        self.layer = nn.Linear(*layers)
        self.norm = nn.BatchNorm1d(layers[1])

    def forward(self, x):
        return self.norm(self.layer(x)).sin()


def reverses_rows(factor=1.0):
    """A compiler whose results are correct up to a factor, and whose sums add the rows in reverse
    order."""
    return StubCompiler(lambda module: lambda x: module(x.flip(0)).flip(0) * factor)


NEGATES = StubCompiler(lambda module: lambda *args: -module(*args))


class Normalised(NearlyConstant):
    """The sum of its results is a constant: all gradients of it cancel."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, affine=False)

    def forward(self, x):
        return self.norm(self.layer(x))


class Cancels(nn.Module):
    """Large terms cancel in a sum, and the remainder of the small terms depends on its order."""

    def forward(self, x):
        large = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(0)) * 1e7
        return torch.cat([x * large, x, -x * large]).sum(0) + 0 * x


def rows_alike(rows):
    return lambda: ([1 + 0.03 * torch.randn(rows, 8)], {})


FEW, MANY = rows_alike(64), rows_alike(90)


def test_amplified_rounding_is_accepted():
    assert verdict(reverses_rows(), NearlyConstant, FEW) == "one_graph"


def test_gradients_of_rounding_errors_are_accepted():
    assert verdict(reverses_rows(), Normalised, MANY) == "one_graph"
    assert verdict(reverses_rows(factor=1.001), Normalised, MANY) == "wrong"


def test_cancellation_in_eager_is_accepted():
    assert verdict(reverses_rows(), Cancels, MANY) == "one_graph"
    assert verdict(reverses_rows(factor=100.0), Cancels, MANY) == "wrong"


def test_wrong_result_with_amplified_rounding_is_detected():
    assert verdict(reverses_rows(factor=1.001), NearlyConstant, FEW) == "wrong"


def spread_of(function, *inputs):
    def run():
        return {"result": function(*inputs)}

    return final_spread(run, "result")


def final_spread(run, path):
    """The spread of a result over all informative runs."""
    return list(spreads_of(run).iterate(path))[-1]


def spreads_of(run):
    def rerun(mode):
        with mode:
            return run()

    return Spreads(run(), rerun)


def test_cancelling_sums_move_by_the_rounding_of_their_terms():
    terms = torch.linspace(1, 2, 1000)
    function = lambda terms: (terms - terms.flip(0)).sum()[None] + torch.tensor([0.0, 1000.0])
    moved = spread_of(function, terms)
    assert 1e-6 < float(moved[0]) < 1e-3


def test_equal_values_stay_equal_under_perturbation():
    def is_largest(x):
        tripled = x * 3
        return (tripled == tripled.max()).float() * 5

    moved = spread_of(is_largest, torch.linspace(0.1, 0.9, 7))
    assert float(moved.max()) == 0.0


def test_counts_do_not_move():
    moved = spread_of(lambda x: (x / 2).floor() * 0.5, torch.arange(8.0))
    assert float(moved.max()) < 1e-6


def test_random_draws_are_not_perturbed():
    with PerturbedInputs(0):
        torch.manual_seed(1)
        noisy = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(noisy, torch.rand(3))


def test_running_statistics_are_updated_under_perturbation():
    norm = nn.BatchNorm1d(3)
    x = torch.rand(5, 3)
    with PerturbedInputs(0):
        norm(x)
    assert torch.allclose(norm.running_mean, 0.1 * x.mean(0), rtol=1e-5)
    assert float(norm.running_mean.abs().max()) > 0.01


def test_unmoved_results_take_no_memory():
    parameters = torch.rand(1000)
    spreads = spreads_of(lambda: {"result": (parameters * 3).exp(), "module": parameters})
    assert list(spreads.iterate("result"))[-1].any()
    unmoved = list(spreads.iterate("module"))[-1]
    assert not unmoved.any()
    assert unmoved.untyped_storage().nbytes() == 8


def test_nondeterministic_run_has_no_spread():
    calls = []

    def run():
        calls.append(1)
        return {"result": torch.tensor([1.0, len(calls) * 1e-2])}

    assert not list(spreads_of(run).iterate("result"))


def test_noisy_runs_suffice_without_double_precision():
    def run():
        return {"result": torch.linspace(1, 2, 5) * 3}

    def rerun(mode):
        if isinstance(mode, Float64Operators):
            return None
        with mode:
            return run()

    assert len(list(Spreads(run(), rerun).iterate("result"))) == NOISY_RUNS


def test_chaotic_result_has_no_spread():
    chaos = lambda x: (x * 1e7).sin() + x
    # Operators in float64 move it by almost nothing, noisy ones by too much.
    assert float(spread_of(chaos, torch.linspace(0.1, 0.9, 50)).max()) < 1e-6


class Chaotic(nn.Module):
    def forward(self, x, other):
        return (x * 1e7).sin()


@pytest.mark.parametrize("other", [1.0, 1e6, float("inf")])
def test_argument_values_do_not_affect_the_spread_of_results(other):
    def call():
        return [torch.linspace(0.1, 0.9, 50), torch.tensor([other])], {}

    assert verdict(NEGATES, Chaotic, call, train=False) == "wrong"


class ChaoticSums(nn.Module):
    def forward(self, x, other):
        return ((x @ other) * 1e6).sin()


def test_chaotic_sums_do_not_hide_wrong_results():
    def call():
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(20, 300, generator=generator) for _ in range(2))
        return [left, right.t()], {}

    assert verdict(NEGATES, ChaoticSums, call, train=False) == "wrong"


def test_infinities_do_not_affect_the_spread_of_other_results():
    def run():
        noise = (torch.linspace(0.1, 0.9, 50) * 1e7).sin()
        return {"result[0]": noise, "result[1]": torch.tensor([torch.inf, torch.nan])}

    assert float(final_spread(run, "result[0]").max()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_perturbation_is_of_the_last_place_of_each_dtype(dtype):
    x = torch.linspace(0.1, 0.9, 64, dtype=dtype)
    moved = spread_of(lambda x: x * 3, x)
    share = float((moved / (x.double() * 3)).max()) / torch.finfo(dtype).eps
    assert 0.4 < share < 2.5


def test_few_elements_may_exceed_the_limit_of_the_norm():
    spread = torch.full((10_000,), 1e-4, dtype=torch.float64)
    few = torch.zeros(10_000)
    few[7] = 1e-2
    assert is_within_rounding(few, spread)
    assert not is_within_rounding(few * 2, spread)
    assert not is_within_rounding(torch.full((10_000,), 1e-3), spread)


def test_unmoved_element_may_move_like_the_others():
    spread = torch.tensor([1e-4, 1e-4, 0.0, 1e-4], dtype=torch.float64)
    assert is_within_rounding(torch.full((4,), 2e-4), spread)


def test_nonfinite_differences_exceed_the_limit():
    spread = torch.ones(2, dtype=torch.float64)
    assert not is_within_rounding(torch.tensor([0.0, torch.nan]), spread)
    assert not is_within_rounding(torch.tensor([0.0, torch.inf]), spread)


def test_overflowing_element_does_not_excuse_others():
    spread = torch.tensor([torch.inf, 1e-7], dtype=torch.float64)
    assert not is_within_rounding(torch.tensor([0.0, 1.0]), spread)
    assert not is_within_rounding(torch.tensor([torch.inf, 1.0]), spread)

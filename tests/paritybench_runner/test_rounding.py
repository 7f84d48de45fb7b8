"""Wrong answers are told from other rounding, which some programs amplify without bound."""

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
from tests.paritybench_runner.planted import Planted, verdict


class NearlyConstant(nn.Module):
    """Batch norm divides by next to nothing, and a bias before it has no influence at all."""

    def __init__(self, layers=(8, 8)):
        super().__init__()
        self.layer = nn.Linear(*layers)
        self.norm = nn.BatchNorm1d(layers[1])

    def forward(self, x):
        return self.norm(self.layer(x)).sin()


def reverses_rows(factor=1.0):
    """A compiler whose results are right, but for a factor, and whose sums add the rows in another
    order."""
    return Planted(lambda module: lambda x: module(x.flip(0)).flip(0) * factor)


NEGATES = Planted(lambda module: lambda *args: -module(*args))


class Normalised(NearlyConstant):
    """The sum of its results is a constant: all gradients of it cancel."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, affine=False)

    def forward(self, x):
        return self.norm(self.layer(x))


class LosesAll(nn.Module):
    """Large terms cancel in one sum, and what is left of the small ones depends on its order."""

    def forward(self, x):
        large = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(0)) * 1e7
        return torch.cat([x * large, x, -x * large]).sum(0) + 0 * x


def rows_alike(rows):
    return lambda: ([1 + 0.03 * torch.randn(rows, 8)], {})


FEW, MANY = rows_alike(64), rows_alike(90)


def test_amplified_rounding_is_not_called_wrong():
    assert verdict(reverses_rows(), NearlyConstant, FEW) == "one_graph"


def test_gradients_that_are_nothing_but_rounding_are_not_called_wrong():
    assert verdict(reverses_rows(), Normalised, MANY) == "one_graph"
    assert verdict(reverses_rows(factor=1.001), Normalised, MANY) == "wrong"


def test_what_eager_mode_itself_loses_in_a_sum_is_not_called_wrong():
    assert verdict(reverses_rows(), LosesAll, MANY) == "one_graph"
    assert verdict(reverses_rows(factor=100.0), LosesAll, MANY) == "wrong"


def test_a_wrong_answer_does_not_hide_behind_amplified_rounding():
    assert verdict(reverses_rows(factor=1.001), NearlyConstant, FEW) == "wrong"


def spread_of(function, *inputs):
    def run():
        return {"result": function(*inputs)}

    return movement(run, "result")


def movement(run, path):
    """How far it moves in all runs that tell something about it."""
    return list(spreads_of(run).iterate(path))[-1]


def spreads_of(run):
    def again(mode):
        with mode:
            return run()

    return Spreads(run(), again)


def test_sums_of_opposite_terms_move_by_what_their_terms_round_to():
    terms = torch.linspace(1, 2, 1000)
    function = lambda terms: (terms - terms.flip(0)).sum()[None] + torch.tensor([0.0, 1000.0])
    moved = spread_of(function, terms)
    assert 1e-6 < float(moved[0]) < 1e-3


def test_values_that_are_one_value_stay_one_under_other_rounding():
    def is_largest(x):
        tripled = x * 3
        return (tripled == tripled.max()).float() * 5

    moved = spread_of(is_largest, torch.linspace(0.1, 0.9, 7))
    assert float(moved.max()) == 0.0


def test_counts_are_exact():
    moved = spread_of(lambda x: (x / 2).floor() * 0.5, torch.arange(8.0))
    assert float(moved.max()) < 1e-6


def test_random_draws_of_the_program_stay_what_they_are():
    with PerturbedInputs(0):
        torch.manual_seed(1)
        noisy = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(noisy, torch.rand(3))


def test_running_statistics_are_updated_under_other_rounding():
    norm = nn.BatchNorm1d(3)
    x = torch.rand(5, 3)
    with PerturbedInputs(0):
        norm(x)
    assert torch.allclose(norm.running_mean, 0.1 * x.mean(0), rtol=1e-5)
    assert float(norm.running_mean.abs().max()) > 0.01


def test_what_no_run_moves_takes_no_memory():
    parameters = torch.rand(1000)
    spreads = spreads_of(lambda: {"result": (parameters * 3).exp(), "module": parameters})
    assert list(spreads.iterate("result"))[-1].any()
    unmoved = list(spreads.iterate("module"))[-1]
    assert not unmoved.any()
    assert unmoved.untyped_storage().nbytes() == 8


def test_a_run_that_does_not_repeat_itself_excuses_nothing():
    calls = []

    def run():
        calls.append(1)
        return {"result": torch.tensor([1.0, len(calls) * 1e-2])}

    assert not list(spreads_of(run).iterate("result"))


def test_operators_that_take_no_double_precision_leave_the_noisy_runs():
    def run():
        return {"result": torch.linspace(1, 2, 5) * 3}

    def again(mode):
        if isinstance(mode, Float64Operators):
            return None
        with mode:
            return run()

    assert len(list(Spreads(run(), again).iterate("result"))) == NOISY_RUNS


def test_a_result_that_is_all_noise_excuses_nothing():
    chaos = lambda x: (x * 1e7).sin() + x
    # Operators that compute in float64 move it by next to nothing, noisy ones by too much.
    assert float(spread_of(chaos, torch.linspace(0.1, 0.9, 50)).max()) < 1e-6


class Chaotic(nn.Module):
    def forward(self, x, other):
        return (x * 1e7).sin()


@pytest.mark.parametrize("other", [1.0, 1e6, float("inf")])
def test_the_values_of_an_argument_say_nothing_about_the_noise_of_a_result(other):
    def call():
        return [torch.linspace(0.1, 0.9, 50), torch.tensor([other])], {}

    assert verdict(NEGATES, Chaotic, call, train=False) == "wrong"


class ChaoticSums(nn.Module):
    def forward(self, x, other):
        return ((x @ other) * 1e6).sin()


def test_sums_that_eager_mode_loses_all_of_excuse_no_other_answer():
    def call():
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(20, 300, generator=generator) for _ in range(2))
        return [left, right.t()], {}

    assert verdict(NEGATES, ChaoticSums, call, train=False) == "wrong"


def test_infinities_say_nothing_about_the_noise_of_other_results():
    def run():
        noise = (torch.linspace(0.1, 0.9, 50) * 1e7).sin()
        return {"result[0]": noise, "result[1]": torch.tensor([torch.inf, torch.nan])}

    assert float(movement(run, "result[0]").max()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_rounds_in_its_own_last_place(dtype):
    x = torch.linspace(0.1, 0.9, 64, dtype=dtype)
    moved = spread_of(lambda x: x * 3, x)
    share = float((moved / (x.double() * 3)).max()) / torch.finfo(dtype).eps
    assert 0.4 < share < 2.5


def test_a_few_elements_may_move_further_than_all_may():
    spread = torch.full((10_000,), 1e-4, dtype=torch.float64)
    few = torch.zeros(10_000)
    few[7] = 1e-2
    assert is_within_rounding(few, spread)
    assert not is_within_rounding(few * 2, spread)
    assert not is_within_rounding(torch.full((10_000,), 1e-3), spread)


def test_an_element_that_no_noisy_run_moved_may_move_like_the_others():
    spread = torch.tensor([1e-4, 1e-4, 0.0, 1e-4], dtype=torch.float64)
    assert is_within_rounding(torch.full((4,), 2e-4), spread)


def test_what_is_not_finite_is_not_near():
    spread = torch.ones(2, dtype=torch.float64)
    assert not is_within_rounding(torch.tensor([0.0, torch.nan]), spread)
    assert not is_within_rounding(torch.tensor([0.0, torch.inf]), spread)


def test_an_element_that_overflows_excuses_no_other():
    spread = torch.tensor([torch.inf, 1e-7], dtype=torch.float64)
    assert not is_within_rounding(torch.tensor([0.0, 1.0]), spread)
    assert not is_within_rounding(torch.tensor([torch.inf, 1.0]), spread)

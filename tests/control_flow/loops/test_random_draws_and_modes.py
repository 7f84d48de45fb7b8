"""Iterations that draw random numbers, switch gradient mode or create objects."""

import pytest
import torch
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.graph_operators.control_operators import for_loop, for_loop_with_exits
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks
from tests.seeding import seed


def drops_out(x):
    h, found = x[0] * 0, []
    for t in range(x.shape[0]):
        h = F.dropout(torch.tanh(h + x[t]), 0.5)
        found.append(h)
    return torch.stack(found), torch.rand(2)


def adds_noise(x):
    h = x[0] * 0 + torch.rand(3)
    for row in x:
        noise = torch.empty(3).normal_()
        h = h * 0.9 + torch.randn_like(h) * row + noise
    return h


def samples(x):
    found = []
    for t in range(x.shape[0]):
        found.append(torch.multinomial(x[t].softmax(-1), 2))
    return torch.stack(found)


def keeps_an_average(x):
    h = average = x[0] * 0
    for row in x:
        h = torch.tanh(h + row)
        with torch.no_grad():
            average = average * 0.9 + h
    return h, average


def enables_gradients_inside_no_grad(x):
    h, aside = x[0] * 0, x[0] * 0
    with torch.no_grad():
        for row in x:
            aside = aside * 0.5 + row
            with torch.enable_grad():
                h = h + row * 2
    return h + aside


class Step:
    def __init__(self, row, scale=2.0):
        self.row = row
        self.scale = scale

    def of(self, h):
        return torch.tanh(h * self.scale + self.row)


class Slower(Step):
    def __init__(self, row):
        super().__init__(row, 0.5)
        self.row = self.row * 2


def makes_objects(x):
    h = x[0] * 0
    for row in x:
        h = Slower(row).of(Step(row).of(h))
    return h


OPERATORS = [
    drops_out, adds_noise, samples, keeps_an_average, enables_gradients_inside_no_grad,
    makes_objects,
]  # fmt: skip


def leaves_gradients_disabled(x):
    before, h = torch.is_grad_enabled(), x[0] * 0
    for row in x:
        h = h + row * 2
        torch.set_grad_enabled(False)
    torch.set_grad_enabled(before)
    return h


def seeds(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        torch.manual_seed(5)
        h = h + torch.rand(3) * x[t]
    return h


def draws_from_a_new_generator(x):
    h, source = x[0] * 0, torch.Generator().manual_seed(1)
    for row in x:
        h = h + torch.rand(3, generator=source) * row
    return h


def draws_on_a_branch(x):
    h = x[0] * 0
    for row in x:
        if row.sum() > 0:
            h = h + torch.rand(3)
        h = h + row
    return h


def keeps_the_object(x):
    step = Step(x[0])
    for row in x:
        step = Step(row * 2 + step.row)
    return step.row


def calls_init_again(x):
    step = Step(x[0])
    for row in x:
        step.__init__(step.row + row)
    return step.row


class Shared:
    made = None

    def __new__(cls, row):
        Shared.made = Shared.made or object.__new__(cls)
        return Shared.made

    def __init__(self, row):
        self.row = row


def makes_no_new_object(x):
    Shared.made, h = None, x[0] * 0
    first = Shared(x[0])
    for row in x:
        h = h + Shared(row).row
    return h, first.row


def raises_under_no_grad(x):
    h = x[0] * 0
    for t in range(x.shape[0] + 1):
        with torch.no_grad():
            h = h + x[t]
    return h


OTHERS = [
    leaves_gradients_disabled, seeds, draws_from_a_new_generator, draws_on_a_branch,
    keeps_the_object, calls_init_again, makes_no_new_object, raises_under_no_grad,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_trip_counts(program):
    loop_checks.check_one_record(program)


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("training", [False, True], ids=loop_checks.case_id)
@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loop_checks.case_id)
def test_draws_and_modes_of_iterations_equal_eagers(program, training):
    loop_checks.check(program, (5, 7, 2, 1, 9), training)
    assert torch.is_grad_enabled()


def exits_after_its_draw(x):
    y = x
    for _ in range(9):
        y = y - torch.rand(3)
        if y[0] < 0:
            break
    return y


def draws_after_the_exit(x):
    y = x
    for _ in range(9):
        y = y - 1
        if y[0] < 0:
            break
        y = F.dropout(y, 0.1)
    return y


def draws_at_the_exit(x):
    y = x
    for _ in range(9):
        y = y - 1
        if y[0] < 0:
            y = F.dropout(y, 0.5)
            break
    return y


def exits_under_no_grad(x):
    y = x
    for _ in range(9):
        with torch.no_grad():
            if y[0] < 0:
                break
        y = y * 0.9 - 0.5
    return y


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize(
    "program",
    [
        exits_after_its_draw, draws_after_the_exit, draws_at_the_exit,
        exits_under_no_grad,
    ],
    ids=loop_checks.case_id,
)  # fmt: skip
def test_draws_and_modes_of_a_loop_with_early_exit_equal_eagers(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for start in (2.5, -1.0, 4.5, 20.0, 0.5, 1.5):
        found = []
        for run in (fast, program):
            seed(3)
            leaf = torch.tensor([start, 3.3, 5.7], requires_grad=True)
            result = run(leaf * 1)
            if result.requires_grad:
                result.sum().backward()
            found.append((result, leaf.grad, torch.get_rng_state(), torch.is_grad_enabled()))
        assert_same(*found)
    if program is exits_after_its_draw:
        assert magpy.cache_info(fast)[:4] == (5, 1, 1, 1)
        (graph,) = magpy.explain(fast, torch.ones(3)).graphs
        assert any(node.target is for_loop_with_exits for node in graph.graph.nodes)


def test_other_rate_or_mode_must_miss():
    def program(x, layer):
        h = x[0] * 0
        for row in x:
            h = layer(torch.tanh(h + row))
        return h

    fast, layer = magpy.compile(program, backend="eager"), torch.nn.Dropout(0.3)
    for i, (size, rate, training, gradients) in enumerate(
        [(5, 0.3, True, True), (7, 0.3, True, True), (9, 0.3, True, True), (4, 0.3, False, True),
         (6, 0.6, True, True), (8, 0.6, True, False), (3, 0.3, True, True)]
    ):  # fmt: skip
        layer.p = rate
        layer.train(training)
        found = []
        for run in (fast, program):
            seed(i)
            x = torch.ones(size, 3, requires_grad=True)
            with torch.set_grad_enabled(gradients):
                result = run(x, layer)
            found.append((result, result.requires_grad, torch.get_rng_state()))
        assert_same(*found)
    assert magpy.cache_info(fast).hits, "the third call differs from the second in its size only"


@pytest.mark.parametrize("program", [drops_out, keeps_an_average])
def test_draws_and_modes_of_compiled_iterations_equal_eagers(program):
    fast = magpy.compile(program)
    for i, size in enumerate([5, 7, 12, 2]):
        found = []
        for run in (fast, program):
            seed(i)
            x = torch.linspace(-1, 1, size * 3).reshape(size, 3).requires_grad_()
            result = run(x)
            result[0].sum().backward()
            found.append((result, x.grad, torch.get_rng_state()))
        assert_same(*found, rtol=1e-5, atol=1e-6)
    assert magpy.cache_info(fast)[:2] == (2, 2)
    (graph,) = magpy.explain(fast, x).graphs
    assert any(node.target is for_loop for node in graph.graph.nodes)

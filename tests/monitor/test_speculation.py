"""Speculation on tensors' values that decide control flow: one graph while the values agree.

If they disagree, the results must equal those of eager mode too.
"""

import random

import numpy as np
import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.config import config
from tests.programs import Twins, check_results, check_stateful, one, tensor


def _assertion(x):
    y = x * 2
    if y.isnan().any():
        raise AssertionError("not a number")
    return y + 1


def _raising_branch(x):
    if (x.abs() > 100).any():
        raise ValueError("too large")
    return x.log1p()


def _number(x):
    positive = (x > 0).sum().item()
    return x * 2 if positive > 1 else x - positive


def _truth_of_a_number(x):
    return x + 1 if int((x > 100).sum()) else x


def _conversion(x):
    return x * bool(x.sum() > 0)


def _equality(x):
    return x * 2 if torch.equal(x, x.abs()) else x * 3


def _all(x):
    return x * 2 if torch._is_all_true(x > -10) else x * 3


def _changed_after(x):
    y = x > 0
    z = x * 2 if y.all() else x
    y.logical_not_()
    return z, y


def _in_a_loop(x):
    total = x * 0
    for i in range(3):
        if (x > i).any():
            total = total + x.clamp(min=i)
    return total


def _random_draws(x):
    y = torch.nn.functional.dropout(x, 0.5)
    return y + 1 if x.sum() > 0 else y + torch.rand(3)


def _without_grad(x):
    with torch.no_grad():
        large = x.sum() > 0
        scale = x * 2 if large else x
    return x * scale


def _list(x):
    counts = [(x > 0).sum(0, keepdim=True).tolist(), (x > 100).tolist()]
    return x * counts[0][0] + sum(counts[1])


def _bool_item(x):
    return x * 2 if (x > -5).all().item() else x * 3


PROGRAMS = [
    _list, _bool_item,
    _assertion, _raising_branch, _number, _truth_of_a_number, _conversion, _equality, _all,
    _changed_after, _in_a_loop, _random_draws, _without_grad,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_serves_calls_with_the_speculated_value(program):
    twins = check_stateful(lambda: program, one(1.0, 2.0, 3.0))
    report = magpy.explain(program, tensor(1.0, 2.0, 3.0))
    assert not report.split_points and report.graph_count == 1
    assert magpy.cache_info(twins.compiled).misses == 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_misspeculated_values_match_eager(program):
    check_results(
        lambda: program,
        *(one(1.0, 2.0, 3.0), one(-1.0, -2.0, -3.0), one(500.0, float("nan"), 0.5)),
        *(one(1.0, -2.0, 0.0), one(1.0, 2.0, 3.0)),
    )


def test_operator_that_fails_under_a_misspeculated_value_matches_eager():
    def program(x, i):
        if (i >= 3).any():
            return x
        return x[i]

    check_results(
        lambda: program,
        lambda: (tensor(1.0, 2.0, 3.0), torch.tensor([0, 1])),
        lambda: (tensor(1.0, 2.0, 3.0), torch.tensor([0, 7])),
    )


class _Effects(nn.Module):
    """Changes external objects before its data-dependent branch, after it, or both."""

    def __init__(self, before=None, after=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(3))
        self.seen = []
        self.draws = random.Random(1)
        self.before, self.after = before, after

    def forward(self, x):
        y = x * self.weight
        if self.before is not None:
            self.before(self, y)
        y = y + 1 if y.sum() > 0 else y - 1
        if self.after is not None:
            self.after(self, y)
        return y


EFFECTS = {
    "list": lambda module, y: module.seen.append(y),
    "attribute": lambda module, y: setattr(module, "last", y),
    "buffer": lambda module, y: module.count.add_(y.detach()),
    "buffer through a view": lambda module, y: module.count[1:].add_(1),
    "parameter's data": lambda module, y: module.weight.data.mul_(0.5),
    "new data": lambda module, y: setattr(module.weight, "data", module.weight.data * 0.5),
    "random numbers": lambda module, y: module.seen.append(torch.rand(2)),
    "random numbers of Python": lambda module, y: module.seen.append(module.draws.random() * y),
    "autocast": lambda module, y: _autocast(module, y),
}


def _autocast(module, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module.seen.append(y.detach() @ y.detach())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", EFFECTS)
def test_effects_happen_once_under_misspeculation(effect, when):
    twins = Twins(lambda: _Effects(**{when: EFFECTS[effect]}))
    for i, scale in enumerate((1.0, 2.0, -1.0, -2.0, 3.0, -1.0, 1.0)):
        twins.call(lambda scale=scale: (torch.full((3,), scale),), why=f"call {i}")


class _InitialisesOnce(nn.Module):
    """Initialises its bias in the first call, as activation normalisation does."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))
        self.register_buffer("initialised", torch.tensor(0))

    def forward(self, x):
        if not self.initialised:
            self.bias.data.copy_(x)
            self.initialised += 1
        return x + self.bias


def test_guard_checks_the_value_of_an_external_tensor():
    twins = Twins(_InitialisesOnce)
    for values in ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (7.0, 8.0, 9.0)):
        twins.call(one(*values))
    twins.call(one(), hit=True)
    for module in (twins.eager, twins.target):
        module.initialised.zero_()
    twins.call(one(), hit=True, why="the record of the first call")
    twins.call(one(5.0, 5.0, 5.0), hit=True)
    assert not magpy.explain(_InitialisesOnce(), tensor(1.0, 2.0, 3.0)).split_points


def test_fullgraph_has_a_record_for_each_branch():
    fast = magpy.compile(_number, backend="eager", fullgraph=True)
    for values in ((1.0, 2.0), (-1.0, 1.0), (1.0, 2.0), (-1.0, 1.0), (-3.0, -1.0)):
        x = torch.tensor(values)
        assert torch.equal(fast(x), _number(x))
    assert magpy.cache_info(fast).records >= 2


def test_misspeculation_splits_the_program():
    fast = magpy.compile(_assertion, backend="eager")
    fast(tensor(1.0, 2.0))
    for _ in range(4):
        with pytest.raises(AssertionError, match="not a number"):
            fast(tensor(1.0, float("nan")))
    before = magpy.cache_info(fast).hits
    assert torch.equal(fast(tensor(3.0, 4.0)), _assertion(tensor(3.0, 4.0)))
    fast(tensor(3.0, 4.0))
    assert magpy.cache_info(fast).hits > before


class _CountsDown(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = 4

    def forward(self, x):
        self.left -= 1
        return x * 2 if self.left else x * 3


def test_truth_of_a_counter_matches_eager():
    twins = Twins(_CountsDown)
    for i in range(7):
        twins.call(one(), why=f"call {i}")


def _elements(x):
    found = x[x > 0]
    if found.numel() > 0:
        return found.mean() * x
    return x


def _iterated(x):
    return torch.stack([row.sum() for row in x[x > 0]])


def _native_size(x):
    found = x[x > 0]
    return found.reshape(-1, found.nelement()) + found.stride(0)


SIZES = [_elements, _iterated, _native_size]


@pytest.mark.parametrize("program", SIZES, ids=lambda program: program.__name__)
def test_data_dependent_size_is_speculated_on(program):
    check_stateful(lambda: program, one(1.0, -2.0, 3.0))
    assert not magpy.explain(program, tensor(1.0, -2.0, 3.0)).split_points
    check_results(lambda: program, one(1.0, -2.0, 3.0), one(5.0, 4.0, 6.0), one(1.0, -2.0, -3.0))


def test_argument_checks_of_torch_do_not_read_the_size():
    def program(x):
        return torch.nn.functional.leaky_relu(x[x > 0])

    check_stateful(lambda: program, one(1.0, -2.0, 3.0))
    twins = Twins(lambda: program)
    twins.call(one(1.0, -2.0, 3.0))
    twins.call(one(1.0, 2.0, 3.0), hit=True)


def _branches_on_draws(x):
    if random.random() > 0.3:
        x = x + 1
    if np.random.uniform() > 0.2 and random.randint(0, 3) < 3:
        x = x * 2
    return x * random.random()


def _draws_and_branches(x):
    scale = random.random()
    count = (x * scale > 1).sum().item()
    return x * scale if count > 1 else x - scale


@pytest.mark.parametrize(
    "program", [_branches_on_draws, _draws_and_branches], ids=lambda it: it.__name__
)
def test_random_numbers_that_decide_control_flow_are_drawn_once(program):
    fast = magpy.compile(program, backend="eager")
    for seed in (5, 5, *range(20)):
        results = []
        for run in (program, fast):
            random.seed(seed)
            np.random.seed(seed)
            x = torch.full((3,), float(seed % 5))
            results.append((run(x), torch.tensor([random.random(), np.random.rand()])))
        for expected, actual in zip(*results, strict=True):
            assert torch.equal(expected, actual), seed
        if seed == 5:
            hits = magpy.cache_info(fast).hits
    assert hits >= 1


def test_unpacked_results_do_not_specialize_their_sizes():
    def program(x):
        a, b = torch.broadcast_tensors(x[x > 0], torch.ones(1))
        return a + b

    check_stateful(lambda: program, one(1.0, -2.0, 3.0))
    twins = Twins(lambda: program)
    twins.call(one(1.0, -2.0, 3.0))
    twins.call(one(1.0, 2.0, 3.0), hit=True)


@pytest.mark.parametrize("extreme", [max, min])
def test_extremes_of_tensors_are_followed_in_python(extreme):
    def program(x):
        count = extreme((x > 0).sum(), 1)
        return x / count, extreme([x.sum(), x.mean(), x.prod()])

    check_results(
        lambda: program,
        *(one(1.0, 2.0, 3.0), one(-1.0, -2.0, -3.0), one(1.0, -2.0, 0.0)),
        one(1.0, float("nan"), 2.0),
    )
    assert not magpy.explain(program, tensor(1.0, 2.0, 3.0)).split_points


def _two_conditions(x):
    """The first condition is always false, the second one varies."""
    if x.isnan().any():
        raise ValueError("not a number")
    y = x * 2
    if y.sum() > 0:
        seen.append(1)
        y = y[:2]
    return y.abs()


seen: list[int] = []


def test_program_splits_only_at_a_misspeculated_value():
    twins = Twins(lambda: _two_conditions)
    twins.call(one(1.0, 2.0, 3.0), hit=False)
    twins.call(one(4.0, 2.0, 3.0), hit=True)
    twins.call(one(-1.0, -2.0, -3.0), hit=False, why="the second condition")
    for values in ((1.0, 1.0, 1.0), (-1.0, -1.0, -1.0), (2.0, 1.0, 1.0), (-2.0, 1.0, 0.0)):
        twins.call(one(*values))
    for values in ((5.0, 1.0, 1.0), (-5.0, -1.0, -1.0)):
        twins.call(one(*values), hit=True, why="both branches are recorded")
    lines = {p.lineno for p in magpy.explain(twins.compiled, tensor(1.0, 2.0, 3.0)).split_points}
    second = _two_conditions.__code__.co_firstlineno + 5
    assert lines == {second}, "the first condition is still speculated on"


def test_speculation_ends_at_the_misspeculation_limit(monkeypatch):
    monkeypatch.setattr(config, "misspeculation_limit", 1)

    def program(x):
        a = x + 1 if x[0].item() > 0 else x - 1
        b = a * 2 if x[1].item() > 0 else a * 3
        return b + 1 if x[2].item() > 0 else b - 1

    fast = magpy.compile(program, backend="eager")
    for values in ((1.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 1.0)):
        assert torch.equal(fast(tensor(*values)), program(tensor(*values)))
    dispatcher = magpy.api._dispatcher(fast)
    records = [r for d in (dispatcher, *dispatcher.continuations()) for r in d.records]
    assert records and not any(record.speculates for record in records)


class _Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.other = nn.InstanceNorm1d(3, track_running_stats=True)

    def forward(self, x):
        y = self.other(self.norm(x).unsqueeze(-1).expand(-1, -1, 2))
        if y.isnan().any():
            raise ValueError("not a number")
        return y


def _make_normalised():
    torch.manual_seed(0)
    return _Normalised().eval()


def test_normalisation_in_eval_mode_does_not_split():
    twins = check_stateful(_make_normalised, lambda: (torch.ones(4, 3).cumsum(0),))
    assert not magpy.api._dispatcher(twins.compiled).split_points
    twins.call(lambda: (torch.full((4, 3), float("nan")),))


def test_statistics_written_before_a_branch_are_written_once():
    twins = Twins(_make_normalised)
    for training in (False, True, True, False, True):
        twins.change(lambda module, training=training: module.train(training))
        for scale in (1.0, 2.0, float("nan"), 3.0):
            twins.call(lambda scale=scale: (torch.ones(4, 3).cumsum(0) * scale,))


def test_checkpointed_function_is_not_run_under_a_misspeculated_value():
    """Its writes are unknown, so that the mock could not roll them back."""

    def make():
        norm = torch.nn.BatchNorm1d(3)

        def program(x):
            if x.sum() > 0:
                x = torch.utils.checkpoint.checkpoint(norm, x, use_reentrant=False)
            return x * 2, norm.num_batches_tracked.clone()

        return program

    twins = Twins(make)
    for value in (1, -1, 2, -2):
        twins.call(lambda value=value: (torch.arange(6.0).view(2, 3) * value + value,), hit=None)

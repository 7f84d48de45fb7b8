"""Branches on a tensor's value become ``cond`` operators of one graph, or split the program."""

import copy
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.bytecode.instruction_stream import instruction_list
from magpy_like.bytecode.post_dominators import RETURN, join_point
from magpy_like.monitor.isolation import Isolation
from magpy_like.splitting.single_instruction import CONDITIONAL_JUMPS
from tests.compare import assert_same
from tests.corpus.test_dynamic import BranchesOnTensor, LoopsUntilSmall
from zoo import ZOO

pytestmark = pytest.mark.usefixtures("forget_everything")

AOT_EAGER = pytest.param("aot_eager", marks=pytest.mark.full)
COND = torch.ops.higher_order.cond


def inputs(count=6, size=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def conds(graph):
    return sum(node.target is COND for node in graph.graph.nodes)


# --- what becomes an operator -------------------------------------------------------------------


def two_sides(x):
    y = x * 2
    if y.sum() > 0:
        z = y + 1
    else:
        z = y - 1
    return z * 3


def one_side(x):
    if x.sum() > 0:
        x = x + 1
    return x * 2


def two_returns(x):
    if x.sum() > 0:
        return x + 1, x
    return x - 1, x


def hands_on_its_argument(x):
    if x.sum() > 0:
        return x
    return -x


def chosen(a, b):
    if a.max() > b.max():
        return torch.sin(a), b
    return torch.cos(a), a + 1


def nested(x):
    a, b = chosen(x, x.flip(0))
    if a.sum() > 0:
        if b.sum() > 0:
            c = a + b
        elif b.sum() < -1:
            c = a - b
        else:
            c = a * b
    else:
        c = b
    return c, [a, b]


def early_exit(x):
    for i in range(4):
        x = x * 0.5 + i
        if x.sum() > 5:
            return x * 10
    return x


def leaves_the_loop(x):
    for factor in (0.5, -1.5, 2.0):
        x = x * factor
        if x.max() > 1:
            break
        if x.min() < -1:
            continue
        x = x + 1
    return x


def within_an_expression(x):
    return x + 1 if x.sum() > 0 and x.max() > 1 or x.min() > -1 else x - 1


def own_containers(x):
    if x.sum() > 0:
        parts = [x * 2, x]
        parts.append(x + 1)
        named = dict(first=parts[0])
        named["second"] = parts[2]
        x = torch.stack([*named.values()]).sum(0)
    return x + 0


def tensor_as_predicate(x):
    if x.sum().reshape(1, 1):
        return x * 2
    return x + 1


def other_numbers(x):
    steps = 1 if x.sum() > 0 else 2
    return x * steps, steps, steps + 1


PROGRAMS = [
    other_numbers, two_sides, one_side, two_returns, hands_on_its_argument, nested, early_exit,
    leaves_the_loop, within_an_expression, own_containers, tensor_as_predicate,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", AOT_EAGER])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_branch_is_one_operator_of_one_graph(program, backend):
    fast = magpy.compile(program, backend=backend, fullgraph=True)
    for x in [*inputs(), torch.zeros(3)]:
        arguments, twins = (x.clone(),), (x.clone(),)
        # With the arguments: a side that hands one on hands on that very tensor.
        assert_same((fast(*arguments), arguments), (program(*twins), twins))
    assert magpy.cache_info(fast)[1:] == (1, 1, 1)
    (graph,) = magpy.explain(fast, inputs(1)[0]).graphs
    assert conds(graph) >= 1


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = torch.tanh(x)
        if y.sum() > 0:
            y = self.act(self.left(y))
        else:
            y = self.right(y)
        return y * 2


@pytest.mark.parametrize("backend", ["eager", AOT_EAGER, "magpy"])
def test_gradients_flow_through_the_side_that_was_taken_only(backend):
    torch.manual_seed(0)
    model = Gated()
    twin = copy.deepcopy(model)
    fast = magpy.compile(model, backend=backend, fullgraph=True)
    for x in inputs(5):
        found = []
        for module, run in ((model, fast), (twin, twin)):
            given = x.clone().requires_grad_()
            module.zero_grad()
            result = run(given)
            result.sum().backward()
            found.append((result, given.grad, [p.grad for p in module.parameters()]))
        assert_same(*found)
    assert magpy.cache_info(fast).records == 1


class EarlyExit(nn.Module):
    """A classifier that stops at the first layer that is sure."""

    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.heads = nn.ModuleList(nn.Linear(8, 4) for _ in range(layers))

    def forward(self, x):
        for layer, head in zip(self.layers, self.heads):
            x = F.relu(layer(x))
            logits = head(x)
            if logits.softmax(-1).max() > 0.5:
                return logits
        return logits


@pytest.mark.parametrize("backend", ["eager", AOT_EAGER, "magpy"])
def test_early_exit_classifier_is_one_graph(backend):
    torch.manual_seed(0)
    model = EarlyExit().eval()
    fast = magpy.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for i, x in enumerate(inputs(8, size=8)):
            assert_same(fast(x * 4 * i), model(x * 4 * i))
    assert magpy.cache_info(fast)[:3] == (7, 1, 1)


@pytest.mark.parametrize("train", [False, True])
def test_block_drop_is_one_graph(train):
    entry = ZOO["BlockDrop"]
    model = entry.make(seed=0).eval()
    with torch.no_grad():  # so that the policy does not always want the same blocks
        model.policy.head.weight.mul_(30)
    twin = copy.deepcopy(model)
    fast = magpy.compile(model, backend="eager", fullgraph=True)
    for seed in range(4):
        found = []
        for module, run in ((model, fast), (twin, twin)):
            args, kwargs = entry.inputs(module, seed, 1)
            with torch.set_grad_enabled(train):
                result = run(*args, **kwargs)
            if train:
                module.zero_grad()
                result[0].sum().backward()
            found.append((result, [p.grad for p in module.parameters()]))
        assert_same(*found)
    assert magpy.cache_info(fast)[:3] == (3, 1, 1)


def test_corpus_module_is_one_graph():
    model = BranchesOnTensor()
    fast = magpy.compile(model, backend="eager", fullgraph=True)
    for x in inputs(4):
        assert_same(fast(x), model(x))
    assert magpy.cache_info(fast).records == 1


# --- loops ---------------------------------------------------------------------------------------


def halves(x):
    steps = 0
    while x.norm() > 1:
        x = x / 2
        steps += 1
    return x, steps


def swaps(x):
    y = x
    while (x > 0).any():
        y, x = x, x - y.abs() - 0.5
    return y, x


def newton(x):
    a = x.abs() + 0.1
    x = a.clone()
    while True:
        new = 0.5 * (x + a / x)
        if (new - x).abs().max() < 1e-4:
            break
        x = new
    return new


def branches_inside(x):
    for _ in range(2):
        if x.sum() > 0:
            x = x - 1
        while x.sum() < 5:
            x = x + 1
            if x.max() > 4:
                x = x * 2
    return x


def given_up(x):
    """The rounds differ, for a number that counts them steers the program."""
    steps = 0
    while x.norm() > 1 and steps < 3:
        x = x / 2
        steps += 1
    return x, steps


def with_effect(x):
    LOG.append(0)
    while x.norm() > 1:
        x = x / 2
        LOG.append(x.sum())
    return x


@pytest.mark.parametrize("backend", ["eager", AOT_EAGER])
@pytest.mark.parametrize("program", [halves, swaps, newton, branches_inside])
def test_a_loop_is_one_operator_of_one_graph(program, backend):
    fast = magpy.compile(program, backend=backend, fullgraph=True)
    for scale, x in enumerate([*inputs(), torch.zeros(3)]):
        arguments, twins = (x * scale,), (x * scale,)
        assert_same((fast(*arguments), arguments), (program(*twins), twins))
    assert magpy.cache_info(fast)[1:] == (1, 1, 1)
    graph = magpy.explain(fast, inputs(1)[0]).graphs[0]
    whole = graph.print_readable(print_output=False)
    assert "while_loop" in whole


@pytest.mark.parametrize("program", [given_up, with_effect])
def test_a_loop_whose_rounds_are_not_alike_does_what_eager_mode_does(program):
    fast = magpy.compile(program, backend="eager")
    for scale, x in enumerate(inputs(8)):
        assert_same(outcome(fast, x * scale), outcome(program, x * scale))


def test_gradients_flow_through_loops():
    def program(x, weight):
        while x.norm() > 1:
            x = x * weight
        return x.sum() + weight

    fast = magpy.compile(program, backend="aot_eager", fullgraph=True)
    for scale, x in enumerate(inputs(4)):
        found = []
        for run in (fast, program):
            leaf = (x * scale).requires_grad_()
            weight = torch.tensor(0.5, requires_grad=True)
            result = run(leaf * 1, weight)
            result.backward()
            found.append((result, leaf.grad, weight.grad))
        assert_same(*found)


def test_corpus_loop_is_one_graph():
    model = LoopsUntilSmall()
    fast = magpy.compile(model, backend="magpy", fullgraph=True)
    for scale, x in enumerate(inputs(5)):
        assert_same(fast(x * scale), model(x * scale))
    assert magpy.cache_info(fast).records == 1


# --- what must split -----------------------------------------------------------------------------


class Counter:
    count = 0


LOG, STATE = [], Counter()


def appends(x):
    if x.sum() > 0:
        LOG.append(x)
        return x + 1
    return x - 1


def counts(x):
    if x.sum() > 0:
        STATE.count += 1
        return x + 1
    return x - 1


def appends_to_own(x):
    seen = []
    if x.sum() > 0:
        seen.append(1)
    return x, seen


def changes_its_argument(x):
    if x.sum() > 0:
        x.mul_(2)
    return x + 1


def changes_a_view(x):
    y = x[1:]
    if x.sum() > 0:
        y += 1
    return x + 1


def advances(x):
    numbers = iter([1.0, 2.0, 3.0])
    if x.sum() > 0:
        x = x + next(numbers)
    return x * next(numbers)


def raises(x):
    if x.sum() > 0:
        raise ValueError("positive")
    return x


def never_ends(x):
    while x.sum() < 0:
        x = x if x is not None else x
        if x.sum() < 1:
            x = x + 10
    else:
        if x.sum() > 1000:
            while True:
                pass
    return x


def other_shapes(x):
    return x.sum() if x.sum() > 0 else x


def draws(x):
    return F.dropout(x) if x.sum() > 0 else x * 2


def changed_afterwards(x):
    y = x * 1
    z = y if x.sum() > 0 else x + 1
    z += 1
    return y, z


def closes_over(x):
    def add():
        nonlocal x
        x = x + 1

    if x.sum() > 0:
        add()
    return x


def cached_result(x):
    if x.sum() > 0:
        STATE.table = getattr(STATE, "table", None) or [x * 2]
        return STATE.table[0] + x
    return x


SPLITTING = [
    appends, counts, appends_to_own, changes_its_argument, changes_a_view, advances, raises,
    never_ends, other_shapes, draws, changed_afterwards, closes_over, cached_result,
]  # fmt: skip


def outcome(program, x):
    LOG.clear()
    STATE.__dict__.clear()
    torch.manual_seed(1)
    argument = x.clone()
    try:
        result = program(argument)
    except ValueError as error:
        result = str(error)
    return (result, argument, list(LOG), dict(vars(STATE))), torch.get_rng_state()


@pytest.mark.parametrize("program", SPLITTING, ids=lambda program: program.__name__)
def test_effects_of_a_side_happen_when_it_is_taken_only(program):
    fast = magpy.compile(program, backend="eager")
    for x in inputs(8):
        assert_same(outcome(fast, x), outcome(program, x))


def test_a_norm_on_the_side_that_was_not_taken_counts_nothing():
    def program(x):
        return norm(x) if x.sum() > 0 else x * 2

    norm, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    before = copy.deepcopy(norm.state_dict())
    fast = magpy.compile(program, backend="eager")
    assert_same(fast(-x.abs()), -x.abs() * 2)
    assert_same(norm.state_dict(), before)
    assert_same(fast(x.abs()), copy.deepcopy(norm)(x.abs()))
    assert norm.num_batches_tracked == 1


# --- the monitored run itself ---------------------------------------------------------------------


class Keeper:
    kept = None


def test_the_monitored_run_hands_on_the_very_tensors():
    def program(x, keeper, log):
        y = x if x.sum() > 0 else x * 2
        keeper.kept = y
        log.append((y, [y]))
        return {"y": y}, y

    fast = magpy.compile(program, backend="eager")
    for x in (torch.ones(3), torch.ones(3), -torch.ones(3)):
        found = []
        for run in (fast, program):
            given, keeper, log = x.clone(), Keeper(), []
            found.append((run(given, keeper, log), given, vars(keeper), log))
        assert_same(*found)


def test_which_tensor_a_branch_hands_on_is_asked_anew():
    def program(x, y):
        z = y if x.sum() > 0 else x
        return z, z is y, z is not x, z is None

    fast = magpy.compile(program, backend="eager")
    for sign in (1, -1, 1, -1):
        arguments, twins = ((torch.ones(3) * sign, torch.zeros(3)) for _ in range(2))
        assert_same((fast(*arguments), arguments), (program(*twins), twins))


def test_containers_tell_which_tensor_a_branch_hands_on():
    def program(x):
        y = x * 1
        z = y if x.sum() > 0 else x + 1
        seen = {y: 1}
        return z in seen, id(z) == id(y)

    fast = magpy.compile(program, backend="eager")
    for sign in (1, -1, 1, -1):
        assert_same(fast(torch.ones(3) * sign), program(torch.ones(3) * sign))


def test_a_branch_leaves_torchs_modes_and_random_state_alone():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    fast = magpy.compile(one_side, backend="eager")
    with torch.no_grad():
        fast(torch.ones(3))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_change_in_a_side_that_was_not_taken_must_miss():
    options = {"factor": 2.0}

    def program(x):
        if x.sum() > 0:
            return x * options["factor"]
        return x

    fast = magpy.compile(program, backend="eager")
    for factor in (2.0, 3.0, 2.0):
        options["factor"] = factor
        for sign in (-1, 1):
            x = torch.ones(3) * sign
            assert_same(fast(x), program(x))


def joins_of(function):
    code = function.__code__
    branches = [i for i in instruction_list(code) if i.name in CONDITIONAL_JUMPS]
    return [join_point(code, i.offset) for i in branches]


def test_sides_meet_where_every_way_comes_through():
    assert joins_of(two_returns) == [RETURN]
    (place,) = joins_of(one_side)
    lines = {
        i: line for start, end, line in one_side.__code__.co_lines() for i in range(start, end)
    }
    assert lines[place] == one_side.__code__.co_firstlineno + 3
    assert joins_of(raises) != [RETURN], "a side that raises never gets to the join"


def changes_what_is_handed_on(x):
    y = x if x.sum() > 0 else x * 2
    y.add_(1)
    return y, x * 1


def test_a_branch_whose_result_is_changed_in_place_is_none_of_the_graph_from_then_on():
    fast = magpy.compile(changes_what_is_handed_on, backend="eager")
    for sign in (1, -1, 1, -1, 1, -1):
        given, expected = torch.full((3,), float(sign)), torch.full((3,), float(sign))
        assert_same(fast(given), changes_what_is_handed_on(expected))
        assert torch.equal(given, expected)
    assert magpy.cache_info(fast).hits >= 2


def test_exception_that_an_abandoned_side_handles_is_forgotten():
    log = []

    @magpy.compile(backend="eager")
    def program(x):
        try:
            if x.sum() > 0:
                raise ValueError("positive")
        except ValueError:
            log.append("changes what was there before, so the side is given up")
        return x

    program(-torch.ones(2))
    assert sys.exception() is None
    program(torch.ones(2))
    assert sys.exception() is None


# --- random numbers ------------------------------------------------------------------------------

DRAWS = {
    "rand": lambda x: x + torch.rand(3),
    "dropout": lambda x: F.dropout(x, 0.5),
    "in place": lambda x: x.clone().uniform_(),
    "permutation": lambda x: x[torch.randperm(3)],
    "leaky with noise": lambda x: F.rrelu(x, training=True),
    "seed": lambda x: torch.randn(3, generator=torch.manual_seed(5)) + x,
    "new layer": lambda x: nn.Linear(3, 3)(x),
}


@pytest.mark.parametrize("sides", ["one", "other", "both"])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_a_side_are_eagers(name, sides):
    draw = DRAWS[name]
    one, other = (draw if sides in (side, "both") else torch.sin for side in ("one", "other"))

    def program(x):
        y = one(x) if x.sum() > 0 else other(x)
        return y + torch.rand(3)

    fast = magpy.compile(program, backend="eager")
    for x in inputs():
        torch.manual_seed(1)
        expected, state = program(x), torch.get_rng_state()
        torch.manual_seed(1)
        assert_same(fast(x), expected)
        assert torch.equal(torch.get_rng_state(), state)


def test_draws_of_other_threads_stay_drawn_while_sides_run(monkeypatch):
    explore, found = Isolation.explore, []

    def explore_while_another_thread_draws(*args):
        reached = explore(*args)
        thread = threading.Thread(target=lambda: found.append(torch.rand(1).item()))
        thread.start()
        thread.join()
        return reached

    monkeypatch.setattr(Isolation, "explore", explore_while_another_thread_draws)
    torch.manual_seed(0)
    magpy.compile(two_sides, backend="eager")(torch.ones(3))
    after = torch.rand(1).item()
    torch.manual_seed(0)
    assert len(found) == 2
    assert [*found, after] == [torch.rand(1).item() for _ in range(3)]


def in_a_round(x):
    y = x * 1
    for _ in range(4):
        y.requires_grad_()
        (gradient,) = torch.autograd.grad((y**2).sum(), y)
        y = (y - 0.3 * gradient).detach()
        if y[0] < 0.05:
            break
    return y


def on_one_side(x):
    y = x * 1
    z = y.requires_grad_() * 2 if x.sum() > 0 else (y * 3).clone()
    return y, z


@pytest.mark.parametrize("program", [in_a_round, on_one_side])
def test_a_side_changes_nothing_of_what_takes_part_in_gradients(program):
    fast = magpy.compile(program, backend="eager")
    for start in (0.3, -1.0, 2.0, -2.0, 0.3):
        assert_same(fast(torch.full((3,), start)), program(torch.full((3,), start)))


def one_tuple_twice(x):
    if x[0] > 0:
        first = second = (x * 2, 2)
    else:
        first = second = (x * 3, 3)
    return first is second, first, second


def test_one_tuple_that_the_sides_leave_in_two_places_stays_one():
    fast = magpy.compile(one_tuple_twice, backend="eager")
    for value in (1.0, -1.0, 2.0, -2.0):
        x = torch.full((3,), value)
        assert_same(fast(x), one_tuple_twice(x))

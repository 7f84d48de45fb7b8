"""Branches on a tensor's value: ``cond`` operators of one graph, or split points."""

import copy
import itertools
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.bytecode.instruction_stream import instruction_list
from magpy_like.bytecode.post_dominators import RETURN, join_point
from magpy_like.monitor.isolation import Isolation
from magpy_like.splitting.native_instruction import CONDITIONAL_JUMPS
from tests.compare import assert_same
from tests.corpus.test_dynamic import BranchesOnTensor, LoopsUntilSmall
from zoo import ZOO

pytestmark = pytest.mark.usefixtures("reset_magpy")

AOT_EAGER = pytest.param("aot_eager", marks=pytest.mark.full)
COND = torch.ops.higher_order.cond


def inputs(count=6, size=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def conds(graph):
    return sum(node.target is COND for node in graph.graph.nodes)


# --- branches that become operators --------------------------------------------------------------


def two_branches(x):
    y = x * 2
    if y.sum() > 0:
        z = y + 1
    else:
        z = y - 1
    return z * 3


def one_branch(x):
    if x.sum() > 0:
        x = x + 1
    return x * 2


def two_returns(x):
    if x.sum() > 0:
        return x + 1, x
    return x - 1, x


def returns_its_argument_or_a_new_tensor(x):
    if x.sum() > 0:
        return x
    return -x


def select(a, b):
    if a.max() > b.max():
        return torch.sin(a), b
    return torch.cos(a), a + 1


def nested(x):
    a, b = select(x, x.flip(0))
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


def early_return(x):
    for i in range(4):
        x = x * 0.5 + i
        if x.sum() > 5:
            return x * 10
    return x


def breaks_and_continues(x):
    for factor in (0.5, -1.5, 2.0):
        x = x * factor
        if x.max() > 1:
            break
        if x.min() < -1:
            continue
        x = x + 1
    return x


def conditional_expression(x):
    return x + 1 if x.sum() > 0 and x.max() > 1 or x.min() > -1 else x - 1


def new_containers(x):
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


def different_numbers(x):
    steps = 1 if x.sum() > 0 else 2
    return x * steps, steps, steps + 1


PROGRAMS = [
    different_numbers, two_branches, one_branch, two_returns, returns_its_argument_or_a_new_tensor,
    nested, early_return, breaks_and_continues, conditional_expression, new_containers,
    tensor_as_predicate,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", AOT_EAGER])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_branch_is_one_operator_of_one_graph(program, backend):
    fast = magpy.compile(program, backend=backend, fullgraph=True)
    for x in [*inputs(), torch.zeros(3)]:
        arguments, twins = (x.clone(),), (x.clone(),)
        # With the arguments: a branch that returns its argument returns the same object.
        assert_same((fast(*arguments), arguments), (program(*twins), twins))
    assert magpy.cache_info(fast)[1:4] == (1, 1, 1)
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
def test_gradients_flow_only_through_the_branch_taken(backend):
    torch.manual_seed(0)
    model = Gated()
    twin = copy.deepcopy(model)
    fast = magpy.compile(model, backend=backend, fullgraph=True)
    for x in inputs(5):
        found = []
        for module, run in ((model, fast), (twin, twin)):
            argument = x.clone().requires_grad_()
            module.zero_grad()
            result = run(argument)
            result.sum().backward()
            found.append((result, argument.grad, [p.grad for p in module.parameters()]))
        assert_same(*found)
    assert magpy.cache_info(fast).records == 1


class EarlyExit(nn.Module):
    """A classifier that returns at the first confident layer."""

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
    with torch.no_grad():  # so that the policy does not always select the same blocks
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


def abandoned_loop(x):
    """The iterations differ, because the number that counts them decides control flow."""
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
def test_loop_is_one_operator_of_one_graph(program, backend):
    fast = magpy.compile(program, backend=backend, fullgraph=True)
    for scale, x in enumerate([*inputs(), torch.zeros(3)]):
        arguments, twins = (x * scale,), (x * scale,)
        assert_same((fast(*arguments), arguments), (program(*twins), twins))
    assert magpy.cache_info(fast)[1:4] == (1, 1, 1)
    graph = magpy.explain(fast, inputs(1)[0]).graphs[0]
    whole = graph.print_readable(print_output=False)
    assert "while_loop" in whole


@pytest.mark.parametrize("program", [abandoned_loop, with_effect])
def test_loop_whose_iterations_differ_behaves_as_in_eager_mode(program):
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


# --- branches that must split --------------------------------------------------------------------


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


def appends_to_a_new_list(x):
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


def advances_an_iterator(x):
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


def different_shapes(x):
    return x.sum() if x.sum() > 0 else x


def draws(x):
    return F.dropout(x) if x.sum() > 0 else x * 2


def changed_after_the_branch(x):
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
    appends, counts, appends_to_a_new_list, changes_its_argument, changes_a_view,
    advances_an_iterator, raises, never_ends, different_shapes, draws, changed_after_the_branch,
    closes_over, cached_result,
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
def test_effects_of_a_branch_happen_only_when_it_is_taken(program):
    fast = magpy.compile(program, backend="eager")
    for x in inputs(8):
        assert_same(outcome(fast, x), outcome(program, x))


def test_batch_norm_on_the_branch_not_taken_updates_no_statistics():
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


def test_monitored_run_returns_the_same_tensor_objects():
    def program(x, keeper, log):
        y = x if x.sum() > 0 else x * 2
        keeper.kept = y
        log.append((y, [y]))
        return {"y": y}, y

    fast = magpy.compile(program, backend="eager")
    for x in (torch.ones(3), torch.ones(3), -torch.ones(3)):
        found = []
        for run in (fast, program):
            argument, keeper, log = x.clone(), Keeper(), []
            found.append((run(argument, keeper, log), argument, vars(keeper), log))
        assert_same(*found)


def test_identity_of_a_branch_result_is_evaluated_at_each_call():
    def program(x, y):
        z = y if x.sum() > 0 else x
        return z, z is y, z is not x, z is None

    fast = magpy.compile(program, backend="eager")
    for sign in (1, -1, 1, -1):
        arguments, twins = ((torch.ones(3) * sign, torch.zeros(3)) for _ in range(2))
        assert_same((fast(*arguments), arguments), (program(*twins), twins))


def test_dictionary_keys_and_id_identify_the_result_of_a_branch():
    def program(x):
        y = x * 1
        z = y if x.sum() > 0 else x + 1
        seen = {y: 1}
        return z in seen, id(z) == id(y)

    fast = magpy.compile(program, backend="eager")
    for sign in (1, -1, 1, -1):
        assert_same(fast(torch.ones(3) * sign), program(torch.ones(3) * sign))


def test_branch_preserves_torch_modes_and_random_state():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    fast = magpy.compile(one_branch, backend="eager")
    with torch.no_grad():
        fast(torch.ones(3))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_change_in_a_branch_not_taken_must_miss():
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


def join_points_of(function):
    code = function.__code__
    branches = [i for i in instruction_list(code) if i.name in CONDITIONAL_JUMPS]
    return [join_point(code, i.offset) for i in branches]


def test_join_point_is_where_all_paths_meet():
    assert join_points_of(two_returns) == [RETURN]
    (join,) = join_points_of(one_branch)
    lines = {
        i: line for start, end, line in one_branch.__code__.co_lines() for i in range(start, end)
    }
    assert lines[join] == one_branch.__code__.co_firstlineno + 3
    assert join_points_of(raises) != [RETURN], "a branch that raises never reaches the join point"


def changes_the_result_in_place(x):
    y = x if x.sum() > 0 else x * 2
    y.add_(1)
    return y, x * 1


def test_branch_whose_result_is_changed_in_place_is_no_operator_afterwards():
    fast = magpy.compile(changes_the_result_in_place, backend="eager")
    for sign in (1, -1, 1, -1, 1, -1):
        argument, expected = torch.full((3,), float(sign)), torch.full((3,), float(sign))
        assert_same(fast(argument), changes_the_result_in_place(expected))
        assert torch.equal(argument, expected)
    assert magpy.cache_info(fast).hits >= 2


def test_exception_handled_in_an_abandoned_branch_run_is_cleared():
    log = []

    @magpy.compile(backend="eager")
    def program(x):
        try:
            if x.sum() > 0:
                raise ValueError("positive")
        except ValueError:
            log.append("mutates an external list, so the branch run is abandoned")
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


@pytest.mark.parametrize("branches", ["true", "false", "both"])
@pytest.mark.parametrize("name", DRAWS)
def test_random_draws_of_a_branch_equal_eagers(name, branches):
    draw = DRAWS[name]
    on_true, on_false = (draw if branches in (b, "both") else torch.sin for b in ("true", "false"))

    def program(x):
        y = on_true(x) if x.sum() > 0 else on_false(x)
        return y + torch.rand(3)

    fast = magpy.compile(program, backend="eager")
    for x in inputs():
        torch.manual_seed(1)
        expected, state = program(x), torch.get_rng_state()
        torch.manual_seed(1)
        assert_same(fast(x), expected)
        assert torch.equal(torch.get_rng_state(), state)


def test_draws_of_other_threads_persist_through_branch_runs(monkeypatch):
    explore, found = Isolation.explore, []

    def explore_while_another_thread_draws(*args):
        reached = explore(*args)
        thread = threading.Thread(target=lambda: found.append(torch.rand(1).item()))
        thread.start()
        thread.join()
        return reached

    monkeypatch.setattr(Isolation, "explore", explore_while_another_thread_draws)
    torch.manual_seed(0)
    magpy.compile(two_branches, backend="eager")(torch.ones(3))
    after = torch.rand(1).item()
    torch.manual_seed(0)
    assert len(found) == 2
    assert [*found, after] == [torch.rand(1).item() for _ in range(3)]


def gradients_inside_an_iteration(x):
    y = x * 1
    for _ in range(4):
        y.requires_grad_()
        (gradient,) = torch.autograd.grad((y**2).sum(), y)
        y = (y - 0.3 * gradient).detach()
        if y[0] < 0.05:
            break
    return y


def requires_grad_on_one_branch(x):
    y = x * 1
    z = y.requires_grad_() * 2 if x.sum() > 0 else (y * 3).clone()
    return y, z


def detaches_in_a_branch(x):
    if x.sum() > 0:
        x.detach_()
    return x * 1


def detaches_in_an_iteration(x):
    for i in range(3):
        if x.sum() > i:
            break
        torch.detach_(x)
    return x * 1


@pytest.mark.parametrize("program", [detaches_in_a_branch, detaches_in_an_iteration])
def test_argument_is_detached_only_where_the_program_does_it(program):
    fast = magpy.compile(program, backend="eager")
    for start in (0.3, -1.0, 2.0, -2.0, 0.3, -1.0):
        leaves = [torch.full((3,), start, requires_grad=True) for _ in range(2)]
        found, expected = leaves[0] * 1, leaves[1] * 1
        assert_same(fast(found), program(expected))
        assert found.requires_grad is expected.requires_grad


def adds_an_array_in_a_branch(x):
    if x.sum() > 0:
        x = x + torch.from_numpy(np.arange(3.0)).to(x) + torch.tensor(np.ones(3)).to(x)
    return x


def adds_an_array_in_an_iteration(x):
    for i in range(3):
        if x.sum() > i:
            break
        x = x + torch.as_tensor(np.arange(3.0)).float()
    return x


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("program", [adds_an_array_in_a_branch, adds_an_array_in_an_iteration])
def test_tensor_made_from_an_array_in_a_branch_has_its_values(program, backend):
    fast = magpy.compile(program, backend=backend, fullgraph=True)
    for start in (0.3, -1.0, 2.0, -2.0):
        assert_same(fast(torch.full((3,), start)), program(torch.full((3,), start)))
    assert magpy.cache_info(fast).hits == 3


@pytest.mark.parametrize("program", [gradients_inside_an_iteration, requires_grad_on_one_branch])
def test_branch_run_leaves_tensors_that_require_gradients_unchanged(program):
    fast = magpy.compile(program, backend="eager")
    for start in (0.3, -1.0, 2.0, -2.0, 0.3):
        assert_same(fast(torch.full((3,), start)), program(torch.full((3,), start)))


def test_nothing_is_logged_about_a_branch_that_would_raise(caplog):
    def program(x):
        if x.sum() > 0:
            x = x + torch.ones(x.shape[0] + 1)
        return x * 2

    fast = magpy.compile(program, backend="eager")
    for _ in range(2):
        assert_same(fast(torch.full((3,), -1.0)), torch.full((3,), -2.0))
    assert not caplog.records


def one_tuple_twice(x):
    if x[0] > 0:
        first = second = (x * 2, 2)
    else:
        first = second = (x * 3, 3)
    return first is second, first, second


def test_tuple_bound_to_two_variables_in_a_branch_stays_one_object():
    fast = magpy.compile(one_tuple_twice, backend="eager")
    for value in (1.0, -1.0, 2.0, -2.0):
        x = torch.full((3,), value)
        assert_same(fast(x), one_tuple_twice(x))


class DoublesWithMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(mask := x > 0)
        return x * 2, mask

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * ctx.saved_tensors[0]


class Reverses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def custom_functions_in_branches(x):
    if x.sum() > 0:
        doubled, mask = DoublesWithMask.apply(x + 1)
        y = doubled * mask
    else:
        y = Reverses.apply(x * 2)
    while y.sum() > 5:
        y = Reverses.apply(y) * 0.5
    return y * 3


# Autograd asks the results on fake tensors for their devices, in native code that must not raise.
@pytest.mark.parametrize("gradients", [True, False])
def test_custom_functions_in_branches_equal_eager(gradients):
    fast = magpy.compile(custom_functions_in_branches, backend="eager")
    for values in [*inputs(), *inputs()]:
        leaves = [values.clone().requires_grad_(gradients) for _ in range(2)]
        results = [
            run(x) for run, x in zip((custom_functions_in_branches, fast), leaves, strict=True)
        ]
        torch.testing.assert_close(*results)
        if gradients:
            for result in results:
                result.sum().backward()
            torch.testing.assert_close(*(leaf.grad for leaf in leaves))
    assert magpy.cache_info(fast).native == 0
    assert magpy.cache_info(fast).hits


class Cubes(torch.autograd.Function):
    """Keeps tensors and attributes in its context."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor, ctx.asked = factor, []
        ctx.asked.append(factor)
        return x * x * x * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * x * 3 * ctx.factor * len(ctx.asked), None


class CubesInTwoSteps(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * x * x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * x * 3 * ctx.factor, None


class CubesWithAutocast(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, factor):
        return Cubes.forward(ctx, x, factor)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        return Cubes.backward(ctx, gradient)


@pytest.mark.parametrize("function", [Doubles, Cubes, CubesInTwoSteps, CubesWithAutocast])
def test_custom_function_in_a_branch_is_part_of_one_graph(function):
    rest = () if function is Doubles else (2.5,)

    def program(x):
        return (function.apply(x, *rest) if x.sum() > 0 else function.apply(x * 3, *rest)) + 1

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for value in (1.0, -1.0, 2.0):
        leaves = [torch.full((3,), value, requires_grad=True) for _ in range(2)]
        for run, x in zip((program, fast), leaves, strict=True):
            run(x).sum().backward()
        torch.testing.assert_close(fast(leaves[0]), program(leaves[0]))
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
    assert magpy.cache_info(fast).graphs == 1


# The dispatcher asks torch's registry about each operator, and notes those that it does not know.
def test_first_custom_function_of_a_process_may_be_in_a_branch(monkeypatch):
    monkeypatch.setattr(torch._library.simple_registry.singleton, "_data", {})
    fast = magpy.compile(custom_functions_in_branches, backend="eager")
    for values in [*inputs(), *inputs()]:
        torch.testing.assert_close(fast(values), custom_functions_in_branches(values))
    assert magpy.cache_info(fast).native == 0


ITERATORS = {
    "chain": lambda: itertools.chain((), [1, 2]),
    "count": lambda: zip(itertools.count(), [1, 2], strict=False),
    "repeat": lambda: itertools.repeat(3, 2),
    "pairwise": lambda: itertools.pairwise([1, 2]),
    "product": lambda: itertools.product([1], [2]),
    "map": lambda: map(abs, [1, 2]),
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS.keys())
def test_branch_may_advance_an_iterator_that_it_makes(make):
    def program(x):
        y = x
        if x.sum() > 0:
            for _ in make():
                y = y + 1
        return y

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for value in (1.0, -1.0, 2.0):
        x = torch.full((3,), value)
        torch.testing.assert_close(fast(x), program(x))
    assert magpy.cache_info(fast).graphs == 1


def test_custom_function_that_a_branch_refuses_stays_on_graphs_elsewhere():
    class Timed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if time.time() > 0 else x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def in_a_branch(x):
        return Timed.apply(x) if x.sum() > 0 else x

    def elsewhere(x):
        return Timed.apply(x) + 1

    x = torch.ones(3)
    for program in (in_a_branch, elsewhere):
        fast = magpy.compile(program, backend="eager")
        for _ in range(3):
            torch.testing.assert_close(fast(x), program(x))
    assert magpy.cache_info(fast).records == magpy.cache_info(fast).graphs == 1

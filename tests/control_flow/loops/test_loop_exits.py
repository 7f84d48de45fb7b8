"""Loops that exit by ``break`` or ``return`` on a tensor's value: one operator of the graph."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.graph_operators.control_operators import for_loop_with_exits
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks

MAX_ITERATIONS = 8
STARTS = (2.5, 4.5, -1.0, 0.5, 20.0, float("nan"), 6.5, 7.5, -5.0, 3.5)
"""A program that counts down from them exits its loop in different iterations, or not at all."""
LOG = []


def breaks_at_the_end(x):
    y = x * 1
    for i in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            break
    return y, i


def breaks_at_the_beginning(x):
    y, rates = x * 1, [1, x * 0.1]
    for _ in range(MAX_ITERATIONS):
        if y[0] < 0:
            break
        y = y - rates[0] - rates[1]
    return y


def breaks_in_the_middle(x):
    y, z = x * 1, x * 0
    for _ in range(MAX_ITERATIONS):
        y = y - torch.tensor([1.0, 1.0, 1.0])
        if not y[0] >= 0:
            break
        z = z + y
    return y, z


def has_an_else(x):
    y = x * 1
    for i in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            break
    else:
        y = y * 100
    return y + i


def returns(x):
    y = x * 1
    for i in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            return y.sum(), i
        y = y - 0.1
        if y[1] < -2:
            return y.mean(), 50
    return y.prod(), 100


def has_two_exits(x):
    y, z, k = x * 1, x * 0, 0
    for i in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            k = 7
            break
        z, k = z + 1, k + 2
        if z.sum() > 15:
            break
        y = y * 0.9
    return y * k, z, i, k


def collects(end):
    """A program that applies ``end`` to the results of its iterations."""

    def program(x):
        y, found = x * 1, []
        for _ in range(MAX_ITERATIONS):
            y = y - 1
            found.append(y)
            if y[0] < 0:
                break
        return end(y, found)

    program.__name__ = end.__name__
    return program


@collects
def fills_a_list(y, found):
    return torch.stack(found).sum(0), len(found), found[-1] * 2


def appends_before_and_after_the_exit(x):
    y, left, right = x * 1, [x], []
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        right.append(y * 2)
        right.append(y * 3)
        if y[0] < 0:
            break
        left.append(y)
    return left, right


def changes_a_new_tensor_before_the_exit(x):
    y = x * 1
    for _ in range(MAX_ITERATIONS):
        z = y - 1
        z.mul_(1.1)
        if z[0] < 0 or z[1] < 1:
            break
        y = z
    return y, z


def branches_before(x):
    y = x * 1
    for _ in range(MAX_ITERATIONS):
        y = y - 1 if y[1] > 2 else y - 0.5
        if y[0] < 0:
            break
    return y


def keeps_the_previous_state(x):
    old = y = x
    for _ in range(MAX_ITERATIONS):
        old = y
        y = y - 1
        if (old - y).sum() > y.sum():
            break
    return y, old


def may_return_its_argument(x):
    y = x
    for _ in range(MAX_ITERATIONS):
        if y[0] < 0:
            break
        y = y - 1
    return y


def within_try(x):
    y = x * 1
    try:
        for _ in range(MAX_ITERATIONS):
            try:
                y = y - 1
                if y[0] < 0:
                    break
            finally:
                z = y * 2
    finally:
        y = y * 2
    return y, z


def within_a_loop(x):
    y = x * 1
    for row, scale in zip((x, x + 1), (1, 3)):
        for _ in range(MAX_ITERATIONS):
            y = y - row * 0.1 - 1
            if y[0] < 0:
                break
        y = y + scale
    return y


def over_rows(x):
    y, found = x * 1, []
    for i, row in enumerate(torch.arange(36.0).reshape(12, 3)):
        y = y - row * 0.1
        found.append(y * i)
        if y[0] < 0:
            break
    return torch.stack(found), i


def has_a_tuple(x):
    state = x * 1, x * 2
    for _ in range(MAX_ITERATIONS):
        a, b = state
        state = a - 1, b + a
        if state[0][0] < 0:
            break
    return state


OPERATORS = [
    breaks_at_the_end, breaks_at_the_beginning, breaks_in_the_middle, has_an_else,
    returns, has_two_exits, fills_a_list, appends_before_and_after_the_exit,
    changes_a_new_tensor_before_the_exit, branches_before, keeps_the_previous_state,
    may_return_its_argument, within_try, within_a_loop, over_rows, has_a_tuple,
]  # fmt: skip


def returns_nothing(x):
    y = x * 1
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            return y
    return None


@collects
def iterates_over_its_list(y, found):
    total = 0
    for z in found:
        total = total + z
    return total


def appends_at_the_exit(x):
    y, found = x * 1, []
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            found.append(y * 7)
            break
        found.append(y)
    return torch.stack(found)


def sets_a_flag(x):
    y, done = x * 1, False
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            done = True
            break
    return y if done else y * 5


def changes_a_new_tensor_after_the_exit(x):
    y = x * 1
    for _ in range(MAX_ITERATIONS):
        z = y - 1
        if z[0] < 0:
            break
        z.mul_(1.1)
        y = z
    return y, z


def writes_into_a_tensor(x):
    y, total = x * 1, torch.zeros(3)
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        total += y
        if y[0] < 0:
            break
    return y, total


def logs_each_iteration(x):
    y = x * 1
    for i in range(MAX_ITERATIONS):
        y = y - 1
        LOG.append(i)
        if y[0] < 0:
            LOG.append("left")
            break
    return y


def raises(x):
    y = x * 1
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < -3:
            raise ValueError("low")
        if y[1] < 0:
            break
    return y


def breaks_on_two_conditions(x):
    y = x * 1
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0 and y[1] < 3:
            break
    return y


def changes_a_carried_value_in_place(x):
    first = old = y = x * 1
    for _ in range(MAX_ITERATIONS):
        if y[0] < 0:
            break
        old = y
        y = y - 1
    old.add_(1)
    return y, old, first


def compares_identity(x):
    first = y = x * 1
    for _ in range(MAX_ITERATIONS):
        if y[0] < 0:
            break
        y = y - 1
    return y + 1 if y is first else y - 1


def may_change_its_argument_after_the_loop(x):
    y = x
    for _ in range(MAX_ITERATIONS):
        if y[0] < 0:
            break
        y = y - 1
    y.mul_(2)
    return y


def has_a_list_of_states(x):
    states = [x * 1, x * 2]
    for _ in range(MAX_ITERATIONS):
        states[0] = states[0] - 1
        states[1] = states[1] + states[0]
        if states[0][0] < 0:
            break
    return states


def assigns_only_after_the_exit(x):
    y = x * 1
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        if y[0] < 0:
            break
        w = y * 3
    return w


def requires_grad_from_the_second_iteration(x):
    y, z = torch.full((3,), 2.0), x[0].detach()
    for _ in range(MAX_ITERATIONS):
        if z < 0:
            break
        y, z = y * x, z - 1
    return y


OTHERS = [
    returns_nothing, iterates_over_its_list, appends_at_the_exit, sets_a_flag,
    changes_a_new_tensor_after_the_exit, writes_into_a_tensor, logs_each_iteration, raises,
    breaks_on_two_conditions, changes_a_carried_value_in_place,
    compares_identity, may_change_its_argument_after_the_loop, has_a_list_of_states,
    assigns_only_after_the_exit, requires_grad_from_the_second_iteration,
]  # fmt: skip


def observe(program, start, training):
    """Observations of one call: results, aliasing among them, gradients, mutations."""
    LOG.clear()
    leaf = torch.tensor([start, 3.3, 5.7], requires_grad=training)
    argument = leaf * 1
    try:
        result = program(argument)
    except (ValueError, UnboundLocalError) as error:
        return type(error), str(error), list(LOG)
    tensors = [t for t in torch.utils._pytree.tree_leaves((result, argument)) if _is_tensor(t)]
    objects = {id(t): i for i, t in enumerate(tensors)}
    losses = [t.sum() * (i + 1) for i, t in enumerate(tensors) if t.requires_grad]
    if losses:
        sum(losses).backward()
    return result, argument, [objects[id(t)] for t in tensors], leaf.grad, list(LOG)


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_exits_in_all_iterations(program):
    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for start in STARTS:
        assert_same(observe(fast, start, True), observe(program, start, True))
    assert magpy.cache_info(fast)[:4] == (len(STARTS) - 1, 1, 1, 1)
    (graph,) = magpy.explain(fast, torch.ones(3)).graphs
    assert any(node.target is for_loop_with_exits for node in graph.graph.nodes)


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("program", OTHERS, ids=loop_checks.case_id)
def test_loop_exit_unfit_for_an_operator_equals_eager(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for start in STARTS[:6]:
        assert_same(observe(fast, start, True), observe(program, start, True))


@pytest.mark.parametrize("program", [fills_a_list, has_two_exits])
def test_compiled_loop_exits_in_the_same_iteration_as_eager(program):
    fast = magpy.compile(program)
    for start in (2.5, -1.0, 20.0, 0.5):
        found, expected = observe(fast, start, True), observe(program, start, True)
        assert_same(found, expected, rtol=1e-5, atol=1e-6)
    assert magpy.cache_info(fast)[:2] == (3, 1)


class Solver:
    rate, most = 0.5, 9

    def __call__(self, x):
        y, found = x, []
        for t in range(self.most):
            step = (y - y.mean()) * self.rate
            y = y - step
            found.append(step)
            if step.abs().max() < 0.05:
                break
        return y, torch.stack(found), t


def test_other_rate_or_trip_count_must_miss():
    fast, solver = magpy.compile(program := Solver(), backend="eager"), Solver()
    for rate, most in ((0.5, 9), (0.25, 9), (0.25, 12), (0.25, 3), (0.25, 20), (0.1, 1)):
        program.rate = solver.rate = rate
        program.most = solver.most = most
        for scale in (4.0, 0.1):
            assert_same(fast(torch.arange(3.0) * scale), solver(torch.arange(3.0) * scale))
    assert magpy.cache_info(fast).hits >= 6


def test_sizes_and_trip_counts_vary_in_one_record():
    def solved(x, most):
        y, found = x, []
        for _ in range(most):
            y = y * 0.5 + 0.01
            found.append(y)
            if y.abs().max() < 0.3:
                break
        return torch.stack(found, 1), y, len(found)

    fast = magpy.compile(solved, backend="eager", fullgraph=True)
    for rows, most in ((4, 9), (5, 11), (9, 20), (3, 5), (7, 2), (6, 30)):
        for scale in (1.0, 8.0):
            x = torch.full((rows, 2), scale)
            assert_same(fast(x, most), solved(x, most))
    info = magpy.cache_info(fast)
    assert (info.misses, info.records) == (2, 1)


def reads_first_and_last(x):
    y, found = x * 1, []
    for _ in range(MAX_ITERATIONS):
        y = y - 1
        found.append(y)
        if y[0] < 0:
            break
        found.append(y * 2)
    return found[0] * 3, {"last": found[-1]}, y


@collects
def compares_the_last_by_identity(y, found):
    return found[-1] is y, found[0] is y


@collects
def changes_the_first_in_place(y, found):
    found[0].add_(3)
    return y, found


def may_have_no_last(x):
    y, found = x * 1, []
    for _ in range(MAX_ITERATIONS):
        if y[0] < 0:
            break
        y = y - 1
        found.append(y)
    try:
        return found[-1] * 1
    except IndexError:
        return x * 5


@pytest.mark.parametrize("first", [-1.0, 2.5])
@pytest.mark.parametrize(
    "program",
    [
        reads_first_and_last,
        compares_the_last_by_identity,
        changes_the_first_in_place,
        may_have_no_last,
    ],
    ids=loop_checks.case_id,
)
def test_identity_of_an_element_depends_on_the_exit(program, first):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for start in (first, 4.5, -1.0, 2.5, 20.0, 0.5):
        assert_same(observe(fast, start, True), observe(program, start, True))
    if program is reads_first_and_last:
        assert magpy.cache_info(fast)[:4] == (5, 1, 1, 1)

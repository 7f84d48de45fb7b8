"""Iterations that branch on the index or another number: a branch inside the loop operator."""

import pytest
import torch
from torch.nn import functional as F

import magpy_like as magpy
from tests.control_flow.loops import loop_checks
from tests.control_flow.loops.loop_checks import has_loop

WEIGHT = torch.linspace(-1, 1, 9).reshape(3, 3)


def last_iteration_differs(x):
    h, n = x[0] * 0, x.shape[0]
    for t in range(n):
        h = h @ WEIGHT + x[t]
        if t < n - 1:
            h = torch.relu(h)
    return h


def even_iterations_differ(x):
    h = x[0] * 0
    for t, y in enumerate(x):
        if t % 2 == 0:
            h = torch.tanh(h + y)
        else:
            h = h - y
    return h


def truth_of_a_number(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = torch.tanh(h @ WEIGHT + x[t])
        if not t % 3:
            h = h * 2
    return h


def continues_early(x):
    h = x[0]
    for t in range(1, x.shape[0]):
        if t % 3 == 1:
            continue
        h = torch.tanh(h + x[t])
    return h


def several_conditions(x):
    h, n = x[0] * 0, x.shape[0]
    for t in range(n):
        h = h + x[t]
        if (t > 1 and t % 3 == 2) or t == n - 1:
            h = h * 0.5
        elif 1 < t < 5:
            h = h + 1
    return h


def condition_on_a_counter(x):
    h, k = x[0] * 0, 3
    for t in range(x.shape[0]):
        if k % 3 == 1:
            h = h * 2
        h = torch.tanh(h + x[t])
        k += 1
    return h, k


def in_a_function(x):
    def step(h, y, t):
        if t % 2 == 1:
            return h - y
        return torch.tanh(h + y)

    h = x[0] * 0
    for t in range(x.shape[0]):
        h = step(h, x[t], t)
    return h


def reads_an_existing_neighbour(x):
    h, n = x[0] * 0, x.shape[0]
    for t in range(n):
        h = torch.tanh(h + x[t])
        if t + 1 < n:
            h = h + x[t + 1]
    return h


BRANCHING = [
    last_iteration_differs, even_iterations_differ, truth_of_a_number, continues_early,
    several_conditions, condition_on_a_counter, in_a_function, reads_an_existing_neighbour,
]  # fmt: skip


@pytest.mark.parametrize("program", BRANCHING, ids=loop_checks.case_id)
def test_iterations_that_branch_on_a_number_are_one_operator(program):
    loop_checks.check_one_record(program)
    loop_checks.check(program, (6, 9, 1, 2, 12), training=True)


def first_iteration_differs(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = x[t] * 3 if t == 0 else torch.tanh(h + x[t])
    return h


def test_condition_true_in_the_first_iteration_only_leaves_no_branch_in_the_operator():
    fast = magpy.compile(first_iteration_differs, backend="eager")
    for size in (5, 7, 9):
        x = torch.randn(size, 3)
        assert torch.equal(fast(x), first_iteration_differs(x))
    assert has_loop(fast, torch.randn(9, 3))
    (graph,) = magpy.explain(fast, torch.randn(9, 3)).graphs
    inside = {node.target for part in graph.modules() for node in part.graph.nodes}
    assert torch.ops.higher_order.cond not in inside


def raises(x):
    h = x[0]
    for t in range(x.shape[0]):
        if t == 8:
            raise IndexError("no ninth iteration")
        h = torch.tanh(h + x[t])
    return h


def breaks_at_an_index(x):
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        if t == 6:
            break
    return h, t


def collects_in_some_iterations(x):
    h, found = x[0], []
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        if t % 2 == 0:
            found.append(h)
    return found


def draws_in_some_iterations(x):
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        if t % 2 == 0:
            h = F.dropout(h, 0.5)
    return h


def number_changes_its_type(x):
    h, scale = x[0], 1
    for t in range(x.shape[0]):
        if t > 2:
            scale = scale * 0.5
        h = h + x[t] * scale
    return h, scale


def detaches_in_some_iterations(x):
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        if t % 3 == 2:
            h = h.detach()
    return h, h.requires_grad


def divides_by_its_index(x):
    h = x[0]
    for t in range(x.shape[0]):
        if t % 2 == 0:
            h = h + 6 / (t - 4)
        h = torch.tanh(h + x[t])
    return h


def nested_loop(x):
    h = x[0]
    for t in range(x.shape[0]):
        k = 0
        while k < t:
            h = h * 0.9
            k += 1
        h = torch.tanh(h + x[t])
    return h


UNROLLED = [
    raises, breaks_at_an_index, collects_in_some_iterations, draws_in_some_iterations,
    number_changes_its_type, detaches_in_some_iterations, nested_loop,
]  # fmt: skip


@pytest.mark.parametrize("program", UNROLLED, ids=loop_checks.case_id)
def test_branches_unfit_for_an_operator_are_unrolled(program):
    loop_checks.check(program, (5, 7, 9, 2), training=True)


def test_branch_that_divides_by_zero_raises():
    fast = magpy.compile(divides_by_its_index, backend="eager")
    for size in (3, 4, 7):
        x = torch.randn(size, 3)
        if size < 5:
            assert torch.equal(fast(x), divides_by_its_index(x))
        else:
            with pytest.raises(ZeroDivisionError):
                fast(x)


def test_compiled_loop_with_index_conditions_equals_eager():
    fast = magpy.compile(several_conditions)
    for size in (5, 7, 9, 4):
        x = torch.randn(size, 3)
        torch.testing.assert_close(fast(x), several_conditions(x))
    assert has_loop(fast, torch.randn(9, 3))

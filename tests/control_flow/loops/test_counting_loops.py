"""``while`` loops over a counter: one operator for all trip counts."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.control_flow.paths.isolated_paths import IsolatedPaths
from magpy_like.graph_operators.control_operators import for_loop, for_loop_with_exits
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks


def counts_up(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        h = torch.tanh(h + x[t])
        t += 1
    return h


def counts_to_a_number(x):
    h, t, n, found = x[0] * 0, 0, len(x), [x[0]]
    while n > t:
        h = h * 0.5 + x[t] * t
        found.append(h)
        t = 1 + t
    return torch.stack(found), t, n


def counts_to_an_inclusive_bound(x):
    h, t = x[0] * 0, 1
    while t <= x.shape[0] - 1:
        h = h * 0.5 + x[t] - x[t - 1]
        t += 1
    return h, t


def counts_down(x):
    h, t = x[0] * 0, x.shape[0] - 1
    while t >= 0:
        h = torch.tanh(h + x[t])
        t -= 1
    return h, t


def counts_down_to_zero(x):
    h, t = x[0] * 0, x.shape[0]
    while t > 0:
        t = t - 1
        h = h * 0.5 + x[t]
    return h, t


def counts_by_two(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        h = h * 0.5 + x[t]
        t += 2
    return h, t


def counts_until_equal(x):
    h, t = x[0] * 0, 0
    while t != x.shape[0]:
        h = h * 0.5 + x[t]
        t += 1
    return h, t


def breaks_on_its_counter(x):
    h, t = x[0] * 0, 0
    while True:
        if t >= x.shape[0]:
            break
        h = h * 0.5 + x[t]
        t += 1
    return h * 2, t


def has_an_else(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        h = h * 0.5 + x[t]
        t += 1
    else:
        h = h * 3
    return h


def counts_several_numbers(x):
    h, t, k, weight = x[0] * 0, 0, 0, 1.0
    while t < x.shape[0]:
        h = h + x[t] * k * weight
        k, weight = k + 3, weight * 0.5
        t += 1
    return h, t, k, weight


def fills_a_tensor(x):
    found, h, t = torch.zeros(x.shape), x[0] * 0, 0
    while t < x.shape[0]:
        h = torch.tanh(h + x[t])
        found[t] = h
        t += 1
    return found


def in_a_function_within_a_loop(x):
    def last(x, scale):
        h, t = x[0] * 0, 0
        while t < len(x):
            h = torch.tanh(h * scale + x[t])
            t += 1
        return h

    return [last(x * k, k) for k in (1.0, 2.0)]


def branches_in_its_body(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        if x[t].sum() > 0:
            h = h + x[t]
        else:
            h = h * 0.5
        t += 1
    return h


OPERATORS = [
    counts_up, counts_to_a_number, counts_to_an_inclusive_bound, counts_down, counts_down_to_zero,
    counts_by_two, counts_until_equal, breaks_on_its_counter, has_an_else,
    counts_several_numbers, fills_a_tensor, in_a_function_within_a_loop,
]  # fmt: skip


def first_iteration_differs(x):
    h, t = None, 0
    while t < x.shape[0]:
        h = x[t] if h is None else torch.tanh(h + x[t])
        t += 1
    return h, t


def continues_early(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        t += 1
        if x.shape[1] == 3:
            continue
        h = h + x[t - 1]
    return h, t


def counts_by_data(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        h = h + x[t]
        t += 1 + int(x[t, 0] > 0)
    return h, t


def changes_its_bound(x):
    h, t, n = x[0] * 0, 0, x.shape[0]
    while t < n:
        h = h + x[t]
        t, n = t + 1, n - 1
    return h, t, n


def doubles(x):
    h, t = x[0] * 0, 1
    while t < x.shape[0]:
        h = h + x[t]
        t *= 2
    return h, t


def counts_by_fractions(x):
    h, t = x[0] * 0, 0.0
    while t < x.shape[0]:
        h = h * 0.5 + x[int(t)]
        t += 0.5
    return h, t


def counts_two_equal_numbers(x):
    h, t, k = x[0] * 0, 0, 0
    while t < x.shape[0]:
        h = h * 0.5 + x[k]
        t += 1
        k += 1
    return h, t, k


def changes_its_counter_twice(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        t += 2
        h = h * 0.5 + x[t - 2]
        t -= 1
    return h, t


def compares_a_sum(x):
    h, t = x[0] * 0, 0
    while t + 1 < x.shape[0]:
        h = h * 0.5 + x[t + 1] - x[t]
        t += 1
    return h, t


def compares_twice(x):
    h, t = x[0] * 0, 0
    while 0 <= t < x.shape[0]:
        h = h * 0.5 + x[t]
        t += 1
    return h, t


def compares_a_tensor_too(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0] and h.sum() < 4:
        h = h * 0.5 + x[t]
        t += 1
    return h, t


def nests_two_loops(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        k = 0
        while k < t:
            h = h * 0.5 + x[k]
            k += 1
        t += 1
    return h, t, k


def has_no_iteration(x):
    h, t = x[0] * 1, 100
    while t < x.shape[0]:
        h = h * 0.5 + x[t]
        t += 1
    return h, t


def reads_beyond_the_end(x):
    h, t = x[0] * 0, 0
    while t < x.shape[0]:
        h = h + x[t + 1]
        t += 1
    return h


def counts_in_an_attribute(x):
    class Clock:
        t = 0

    clock, h = Clock(), x[0] * 0
    while clock.t < x.shape[0]:
        h = h + x[clock.t]
        clock.t += 1
    return h, clock.t


def counts_by_the_length_of_a_list(x):
    h, found = x[0] * 0, []
    while len(found) < x.shape[0]:
        h = h + x[len(found)]
        found.append(h)
    return found


def collects_its_counter(x):
    h, t, seen = x[0] * 0, 0, []
    while t < x.shape[0]:
        h = h + x[t]
        seen.append(t)
        t += 1
    return h, seen


def keeps_the_previous_counter(x):
    h, t, before = x[0] * 0, 0, 0
    while t < x.shape[0]:
        h = h * 0.5 + x[before]
        before = t
        t += 1
    return h, before, t


OTHERS = [
    first_iteration_differs, continues_early, counts_by_data, changes_its_bound, doubles,
    counts_by_fractions, counts_two_equal_numbers, changes_its_counter_twice, compares_a_sum,
    compares_twice, compares_a_tensor_too, nests_two_loops, has_no_iteration, reads_beyond_the_end,
    counts_in_an_attribute, counts_by_the_length_of_a_list, collects_its_counter,
    keeps_the_previous_counter, branches_in_its_body,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_trip_counts(program):
    loop_checks.check_one_record(program)


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("training", [False, True], ids=loop_checks.case_id)
@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loop_checks.case_id)
def test_counting_loop_equals_eager(program, training):
    loop_checks.check(program, (5, 7, 2, 3, 1, 9), training)


def breaks_early(x, most):
    y, t, found = x, 0, []
    while t < most:
        y = y * 0.5
        found.append(y)
        t += 1
        if y.abs().max() < 0.3:
            break
    return y, t, torch.stack(found)


def returns_early(x, most):
    y, t = x, 0
    while t < most:
        if y.abs().max() < 0.3:
            return y, t
        y = y * 0.5
        t += 1
    return y * 3, t


@pytest.mark.parametrize("program", [breaks_early, returns_early])
def test_counting_loop_with_early_exit_is_one_operator(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for most in (6, 9, 12, 4, 2, 20):
        before = magpy.cache_info(fast)
        for scale in (1.0, 8.0, 0.1, 100.0):
            x = torch.full((2,), scale)
            assert_same(fast(x, most), program(x, most))
    assert magpy.cache_info(fast).misses == before.misses
    (graph,) = magpy.explain(fast, x, 5).graphs
    assert any(node.target is for_loop_with_exits for node in graph.graph.nodes)


def test_other_start_bound_or_step_of_a_counting_loop_must_miss():
    def program(x, begin, end, step):
        h, t = x * 0, begin
        while t < end:
            h = h * 0.5 + x * t
            t += step
        return h, t

    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    x = torch.ones(2)
    for numbers in ((0, 5, 1), (0, 7, 1), (0, 9, 1), (2, 9, 1), (4, 30, 1), (0, 9, 2), (0, 9, 3),
                    (1, 8, 2), (-3, 4, 1), (5, 5, 1), (6, 5, 1), (0, 1, 1), (True, 6, 1),
                    (0, 6.5, 1), (0, 8, 0.5)):  # fmt: skip
        assert_same(fast(x, *numbers), program(x, *numbers))


def test_compiled_counting_loop_equals_eager():
    fast = magpy.compile(counts_to_a_number)
    for i, size in enumerate([5, 7, 12, 2]):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(i))
        assert_same(fast(x), counts_to_a_number(x), rtol=1e-5, atol=1e-6)
    assert magpy.cache_info(fast)[:2] == (2, 2)
    (graph,) = magpy.explain(fast, x).graphs
    assert any(node.target is for_loop for node in graph.graph.nodes)


def skips_some_iterations(x):
    t, h = 0, x[0] * 0
    while t < x.shape[0]:
        t += 1
        if x[t - 1].sum() > 0:
            continue
        h = torch.tanh(h + x[t - 1])
    return h


def test_iterations_that_continue_are_recorded_without_exploring_all_paths(monkeypatch):
    """The branches join after the loop only: each iteration doubles the number of paths."""
    runs, explore = [], IsolatedPaths.explore
    monkeypatch.setattr(
        IsolatedPaths,
        "explore",
        lambda *args, **kwargs: runs.append(1) or explore(*args, **kwargs),
    )
    fast = magpy.compile(skips_some_iterations, backend="eager")
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    assert_same(fast(x), skips_some_iterations(x))
    assert len(runs) < 200

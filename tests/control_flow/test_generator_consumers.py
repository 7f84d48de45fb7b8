"""Loops in what is consumed at once: generator expressions, and sums of rows or lists."""

import functools

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow import loops

WEIGHT = torch.eye(3) * 0.5 + 0.1


def a_list(x):
    return list(torch.tanh(x[t]) * t for t in range(x.shape[0]))


def a_stack_of_a_tuple(x):
    return torch.stack(tuple(torch.tanh(x[t]) @ WEIGHT for t in range(x.shape[0])))


def a_stack_of_rows(x):
    return torch.stack(list(torch.tanh(row) for row in x * 2), 1)


def of_several_things(x):
    return (
        list(a * 2 - b for a, b in zip(x, x + 1)),
        list(row * i for i, row in enumerate(x, 1)),
        tuple(x[t] * t for t in range(x.shape[0] - 1, -1, -1)),
    )


def a_sum(x):
    return sum(torch.tanh(x[t]) * t for t in range(x.shape[0]))


def a_sum_of_rows(x):
    return sum(torch.tanh(row) for row in x)


def a_sum_with_a_beginning(x):
    begin = torch.ones(3)
    other = sum((x[t] * t for t in range(1, x.shape[0])), 2.5)
    return (
        sum((torch.tanh(x[t] + 1) for t in range(x.shape[0])), begin),
        sum((row * 2 for row in x), start=begin),
        other,
    )


def a_sum_of_a_list(x):
    return sum(torch.tanh(y) for y in [row * 2 for row in x])


def with_inner_loops(x):
    return list(torch.tanh(x[t]) * k for t in range(x.shape[0]) for k in range(3) if k != 1)


def conditions_that_stay(x, scale=None):
    return list(x[t] if scale is None else x[t] * scale for t in range(x.shape[0]) if WEIGHT.dim())


def in_a_method_of_a_module(x):
    layer = torch.nn.Linear(3, 3)
    return torch.cat(list(layer(x[t : t + 1]) for t in range(x.shape[0])))


def sums_rows(x):
    return sum(x), sum(x * 2, torch.ones(3)), sum(x[:, 0], start=1.5)


def sums_what_a_loop_made(x):
    found = []
    for row in x:
        found.append(torch.tanh(row))
    return sum(found) / len(found), sum(y * 2 for y in found), torch.stack(found)


def begins_with_the_first(x):
    found = [torch.tanh(row) for row in x]
    h = found[0]
    for y in found[1:]:
        h = torch.tanh(h @ WEIGHT + y)
    for y in x.unbind(0)[1:-1]:
        h = h * 0.5 + y
    return h, found[1:], torch.stack(found[:-1])


def reduces(x):
    found = [torch.tanh(row) for row in x]
    return (
        functools.reduce(lambda h, y: torch.tanh(h @ WEIGHT + y), found),
        functools.reduce(torch.maximum, x),
        functools.reduce(lambda h, y: h * 0.5 + y, x, torch.zeros(3)),
    )


def handed_on_by_a_walrus(x):
    h = x[0] * 0
    return list((h := torch.tanh(h + x[t])) for t in range(x.shape[0])), h


def over_a_spread_range(x):
    bounds, rows, h = (1, x.shape[0]), (x, x + 1), x[0] * 0
    for t in range(*bounds):
        h = torch.tanh(h + x[t - 1])
    for a, b in zip(*rows):
        h = h * 0.5 + a * b
    return h


def maps(x):
    found = [torch.tanh(row) for row in x]
    return (
        list(map(torch.tanh, x)),
        torch.stack(tuple(map(lambda a, b: a @ WEIGHT - b, x * 2, found))),
        torch.cat(list(map(torch.nn.Tanh(), (x + 1).split(1)))),
    )


def sums_what_it_maps(x):
    y = x * 2
    return sum(map(torch.dot, x, y)), sum(a * b for a, b in zip(x, y))


OPERATORS = [
    a_list, a_stack_of_a_tuple, a_stack_of_rows, of_several_things, a_sum, a_sum_of_rows,
    a_sum_with_a_beginning, a_sum_of_a_list, with_inner_loops, conditions_that_stay,
    in_a_method_of_a_module, sums_rows, sums_what_a_loop_made, begins_with_the_first, reduces,
    maps, sums_what_it_maps, over_a_spread_range, handed_on_by_a_walrus,
]  # fmt: skip


def gives_what_is_to_be_gone_through(x):
    def indices():
        return range(x.shape[0])

    def rows(*given):
        return zip(*given)

    h = x[0] * 0
    for t in indices():
        h = torch.tanh(h + x[t])
    for a, b in rows(x, x * 2):
        h = h * 0.5 + a * b
    return h, [*map(torch.tanh, x)], list(map(len, x)), sum(map(len, x))


def by_a_condition(x):
    return list(x[t] * 2 for t in range(x.shape[0]) if t % 2)


def by_a_condition_on_rows(x):
    return sum(row for row in x if row.sum() > 0), list(row * 2 for row in x if row[0] > 0)


def functions_that_share_a_variable(x):
    return [f(x[0]) for f in list(lambda y: y * t for t in range(x.shape[0]))]


def one_tensor_changed_in_place(x):
    total, other = x[0] * 0, x[0] * 0
    found = list(total.add_(x[t]) for t in range(x.shape[0]))
    return found, sum(other.add_(x[t].detach()) for t in range(x.shape[0])), found[0] is found[-1]


def always_the_same(x):
    y = x * 2
    found = list(y for _ in range(x.shape[0]))
    return found, found[0] is found[-1], list(row for row in x)


def rows_changed_in_place(x):
    y = x * 2
    return functools.reduce(lambda a, b: a.add_(b), y), y


def ends_by_stop_iteration(x):
    calls = []

    def f(row):
        calls.append(row.sum())
        return row * 2 if len(calls) < 4 else next(iter(()))

    return list(map(f, x)), sum(map(f, x)), calls


def maps_in_other_ways(x):
    h = x[0] * 0
    for y in map(torch.tanh, x):
        h = h * 0.5 + y
    made = map(torch.tanh, x)
    return h, next(made), list(made), [*map(torch.exp, x)], list(map(torch.add, x, range(3)))


def of_numbers(x):
    return (
        sum(t for t in range(x.shape[0])) * x,
        sum(t * 0.1 for t in range(x.shape[0])),
        list(t * 2 for t in range(x.shape[0])),
        sum((x[t].numel() for t in range(x.shape[0])), 2),
    )


def numbers_before_tensors(x):
    return sum((t if t < 2 else x[t] * t) for t in range(x.shape[0]))


def raises_amid(x):
    return list(x[t + 1] * 2 for t in range(x.shape[0]))


def raises_stop_iteration(x):
    return tuple(x[t] if t < 3 else next(iter(())) for t in range(x.shape[0]))


def changes_rows_before(x):
    y = x * 2
    return sum((row * 2 for row in y), y.add_(1)[0]), sum((y[t] for t in range(2)), y.mul_(2)[0])


def asks_the_generator_itself(x):
    return (
        list((x[t] * 2 for t in range(x.shape[0])).__iter__()),
        list((x[t] * 2 for t in range(x.shape[0])) or ()),
        list(iter(x[t] * 2 for t in range(x.shape[0]))),
        list(zip((x[t] * 2 for t in range(x.shape[0])), x)),
        [*(x[t] * 2 for t in range(x.shape[0]))],
    )


def raises_before(x):
    if x.shape[0] > 100:
        start = 1
    return sum((x[t] for t in range(x.shape[0])), start)


def broader_and_broader(x):
    return sum(torch.ones(1 + (t > 2), 1) * x[t] for t in range(x.shape[0]))


def given_a_name_first(x):
    made = (torch.tanh(x[t]) for t in range(x.shape[0]))
    return list(made), list(made), list(2 * y for y in (x[t] for t in range(x.shape[0])))


def taken_in_part(x):
    made = iter([y * 2 for y in x])
    return next(made), sum(made), max(len(x[t]) for t in range(len(x)))


def other_slices(x):
    found = [torch.tanh(row) for row in x]
    rest = found[2:]
    return (
        found[:0],
        found[0:0],
        found[1:3],
        found[::2],
        found[-2:],
        rest,
        rest[:1],
        found[:1],
        found[5:],
    )


def slices_of_nothing(x):
    found = [torch.tanh(row) for row in x]
    return len(found[:0]), torch.stack(found)


def adds_to_what_it_has_summed(x):
    found = [torch.tanh(row) for row in x]
    rest = found[1:]
    rest.append(x[0])
    return sum(found), rest, sum(rest), sum(found, x.new_ones(3)), found


def spread_over(x):
    found = [torch.tanh(row) for row in x]
    both = (found, x)
    return [a + b for a, b in zip(*both)], list(zip(*both))


ROUND_BY_ROUND = [
    gives_what_is_to_be_gone_through,
    by_a_condition, by_a_condition_on_rows, functions_that_share_a_variable,
    one_tensor_changed_in_place, always_the_same, rows_changed_in_place,
    ends_by_stop_iteration, maps_in_other_ways, of_numbers, numbers_before_tensors,
    raises_amid, raises_stop_iteration, changes_rows_before, asks_the_generator_itself,
    raises_before,
    broader_and_broader, given_a_name_first, taken_in_part, other_slices, slices_of_nothing,
    adds_to_what_it_has_summed, spread_over,
]  # fmt: skip


CASES = [
    (program, training) for program in OPERATORS + ROUND_BY_ROUND for training in (False, True)
]


@pytest.mark.parametrize(("program", "training"), CASES, ids=loops.name)
def test_what_is_consumed_at_once_gives_what_eager_gives(program, training):
    loops.check(program, (5, 7, 9, 4, 12, 2, 3, 1, 6), training)


@pytest.mark.parametrize("program", OPERATORS, ids=loops.name)
def test_one_record_serves_every_length(program):
    loops.check_one_record(program)


@pytest.mark.parametrize(
    "program",
    [by_a_condition, by_a_condition_on_rows, one_tensor_changed_in_place, broader_and_broader],
    ids=loops.name,
)
def test_rounds_that_are_not_alike_stay_unrolled(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    loops.check_calls(fast, program, (5, 7, 9), training=False)
    assert not loops.has_loop(fast, torch.ones(8, 3))


def test_numbers_that_are_spread_from_outside_are_those_of_each_call():
    def program(x, bounds):
        h = x[0] * 0
        for t in range(*bounds):
            h = torch.tanh(h + x[t])
        return h

    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    x = torch.randn(12, 3)
    for bounds in ((0, 5, 1), (0, 7, 1), (0, 12, 1), (1, 9, 2), (0, 1, 1), [3, 11]):
        assert_same(fast(x, bounds), program(x, bounds))


def test_what_a_sum_begins_with_may_split_the_program():
    @magpy.disable
    def opaque(value):
        return value * 1.0

    def program(x):
        y = x * 2
        return sum((torch.tanh(y[t]) for t in range(x.shape[0])), opaque(y[0])) * 2

    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for size in (5, 7, 9, 4, 12, 2, 3, 1, 6):
        x = torch.randn(size, 3)
        assert_same(fast(x), program(x))


def test_what_goes_through_something_elsewhere_is_recorded():
    program = gives_what_is_to_be_gone_through
    fast = magpy.compile(program, backend="eager", fullgraph=True, options={"record_limit": 20})
    loops.check_calls(fast, program, (5, 7, 9, 7), training=False)
    assert magpy.cache_info(fast).hits == 1

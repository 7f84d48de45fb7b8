"""Generator expressions consumed by native functions, and sums of rows or lists."""

import functools

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks

WEIGHT = torch.eye(3) * 0.5 + 0.1


def list_of_a_generator(x):
    return list(torch.tanh(x[t]) * t for t in range(x.shape[0]))


def stack_of_a_tuple(x):
    return torch.stack(tuple(torch.tanh(x[t]) @ WEIGHT for t in range(x.shape[0])))


def stack_of_rows(x):
    return torch.stack(list(torch.tanh(row) for row in x * 2), 1)


def several_consumers(x):
    return (
        list(a * 2 - b for a, b in zip(x, x + 1)),
        list(row * i for i, row in enumerate(x, 1)),
        tuple(x[t] * t for t in range(x.shape[0] - 1, -1, -1)),
    )


def sum_of_a_generator(x):
    return sum(torch.tanh(x[t]) * t for t in range(x.shape[0]))


def sum_of_rows(x):
    return sum(torch.tanh(row) for row in x)


def sum_with_a_start(x):
    begin = torch.ones(3)
    other = sum((x[t] * t for t in range(1, x.shape[0])), 2.5)
    return (
        sum((torch.tanh(x[t] + 1) for t in range(x.shape[0])), begin),
        sum((row * 2 for row in x), start=begin),
        other,
    )


def sum_of_a_list(x):
    return sum(torch.tanh(y) for y in [row * 2 for row in x])


def nested_generator(x):
    return list(torch.tanh(x[t]) * k for t in range(x.shape[0]) for k in range(3) if k != 1)


def invariant_conditions(x, scale=None):
    return list(x[t] if scale is None else x[t] * scale for t in range(x.shape[0]) if WEIGHT.dim())


def module_in_a_generator(x):
    layer = torch.nn.Linear(3, 3)
    return torch.cat(list(layer(x[t : t + 1]) for t in range(x.shape[0])))


def sums_rows(x):
    return sum(x), sum(x * 2, torch.ones(3)), sum(x[:, 0], start=1.5)


def sums_the_list_of_a_loop(x):
    found = []
    for row in x:
        found.append(torch.tanh(row))
    return sum(found) / len(found), sum(y * 2 for y in found), torch.stack(found)


def starts_with_the_first_element(x):
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


def carried_by_a_walrus(x):
    h = x[0] * 0
    return list((h := torch.tanh(h + x[t])) for t in range(x.shape[0])), h


def unpacked_range_arguments(x):
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


def sums_a_map(x):
    y = x * 2
    return sum(map(torch.dot, x, y)), sum(a * b for a, b in zip(x, y))


OPERATORS = [
    list_of_a_generator, stack_of_a_tuple, stack_of_rows, several_consumers, sum_of_a_generator,
    sum_of_rows, sum_with_a_start, sum_of_a_list, nested_generator, invariant_conditions,
    module_in_a_generator, sums_rows, sums_the_list_of_a_loop, starts_with_the_first_element,
    reduces, maps, sums_a_map, unpacked_range_arguments, carried_by_a_walrus,
]  # fmt: skip


def functions_return_the_iterables(x):
    def indices():
        return range(x.shape[0])

    def rows(*iterables):
        return zip(*iterables)

    h = x[0] * 0
    for t in indices():
        h = torch.tanh(h + x[t])
    for a, b in rows(x, x * 2):
        h = h * 0.5 + a * b
    return h, [*map(torch.tanh, x)], list(map(len, x)), sum(map(len, x))


def condition_on_the_index(x):
    return list(x[t] * 2 for t in range(x.shape[0]) if t % 2)


def condition_on_rows(x):
    return sum(row for row in x if row.sum() > 0), list(row * 2 for row in x if row[0] > 0)


def closures_that_share_a_variable(x):
    return [f(x[0]) for f in list(lambda y: y * t for t in range(x.shape[0]))]


def tensor_changed_in_place(x):
    total, other = x[0] * 0, x[0] * 0
    found = list(total.add_(x[t]) for t in range(x.shape[0]))
    return found, sum(other.add_(x[t].detach()) for t in range(x.shape[0])), found[0] is found[-1]


def yields_one_tensor(x):
    y = x * 2
    found = list(y for _ in range(x.shape[0]))
    return found, found[0] is found[-1], list(row for row in x)


def rows_changed_in_place(x):
    y = x * 2
    return functools.reduce(lambda a, b: a.add_(b), y), y


def callback_raises_stop_iteration(x):
    calls = []

    def f(row):
        calls.append(row.sum())
        return row * 2 if len(calls) < 4 else next(iter(()))

    return list(map(f, x)), sum(map(f, x)), calls


def other_uses_of_map(x):
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


def raises_in_the_last_iteration(x):
    return list(x[t + 1] * 2 for t in range(x.shape[0]))


def raises_stop_iteration(x):
    return tuple(x[t] if t < 3 else next(iter(())) for t in range(x.shape[0]))


def start_changes_the_rows(x):
    y = x * 2
    return sum((row * 2 for row in y), y.add_(1)[0]), sum((y[t] for t in range(2)), y.mul_(2)[0])


def uses_the_generator_object(x):
    return (
        list((x[t] * 2 for t in range(x.shape[0])).__iter__()),
        list((x[t] * 2 for t in range(x.shape[0])) or ()),
        list(iter(x[t] * 2 for t in range(x.shape[0]))),
        list(zip((x[t] * 2 for t in range(x.shape[0])), x)),
        [*(x[t] * 2 for t in range(x.shape[0]))],
    )


def start_raises(x):
    if x.shape[0] > 100:
        start = 1
    return sum((x[t] for t in range(x.shape[0])), start)


def varying_sizes(x):
    return sum(torch.ones(1 + (t > 2), 1) * x[t] for t in range(x.shape[0]))


def generator_in_a_variable(x):
    made = (torch.tanh(x[t]) for t in range(x.shape[0]))
    return list(made), list(made), list(2 * y for y in (x[t] for t in range(x.shape[0])))


def partly_consumed(x):
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


def appends_to_a_summed_list(x):
    found = [torch.tanh(row) for row in x]
    rest = found[1:]
    rest.append(x[0])
    return sum(found), rest, sum(rest), sum(found, x.new_ones(3)), found


def unpacks_arguments_of_zip(x):
    found = [torch.tanh(row) for row in x]
    both = (found, x)
    return [a + b for a, b in zip(*both)], list(zip(*both))


UNROLLED = [
    functions_return_the_iterables, condition_on_the_index, condition_on_rows,
    closures_that_share_a_variable, tensor_changed_in_place, yields_one_tensor,
    rows_changed_in_place, callback_raises_stop_iteration, other_uses_of_map, of_numbers,
    numbers_before_tensors, raises_in_the_last_iteration, raises_stop_iteration,
    start_changes_the_rows, uses_the_generator_object, start_raises, varying_sizes,
    generator_in_a_variable, partly_consumed, other_slices, slices_of_nothing,
    appends_to_a_summed_list, unpacks_arguments_of_zip,
]  # fmt: skip


CASES = [(program, training) for program in OPERATORS + UNROLLED for training in (False, True)]


@pytest.mark.parametrize(("program", "training"), CASES, ids=loop_checks.case_id)
def test_consumed_generator_equals_eager(program, training):
    loop_checks.check(program, (5, 7, 9, 4, 12, 2, 3, 1, 6), training)


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_lengths(program):
    loop_checks.check_one_record(program)


@pytest.mark.parametrize(
    "program",
    [condition_on_the_index, condition_on_rows, tensor_changed_in_place, varying_sizes],
    ids=loop_checks.case_id,
)
def test_iterations_that_differ_stay_unrolled(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    loop_checks.check_calls(fast, program, (5, 7, 9), training=False)
    assert not loop_checks.has_loop(fast, torch.ones(8, 3))


def test_unpacked_external_range_arguments_are_read_at_each_call():
    def program(x, bounds):
        h = x[0] * 0
        for t in range(*bounds):
            h = torch.tanh(h + x[t])
        return h

    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    x = torch.randn(12, 3)
    for bounds in ((0, 5, 1), (0, 7, 1), (0, 12, 1), (1, 9, 2), (0, 1, 1), [3, 11]):
        assert_same(fast(x, bounds), program(x, bounds))


def test_start_of_a_sum_may_split_the_program():
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


def test_loops_over_iterables_that_functions_return_need_no_split():
    program = functions_return_the_iterables
    fast = magpy.compile(program, backend="eager", fullgraph=True, options={"record_limit": 20})
    loop_checks.check_calls(fast, program, (5, 7, 9, 7), training=False)
    assert magpy.cache_info(fast).hits == 1

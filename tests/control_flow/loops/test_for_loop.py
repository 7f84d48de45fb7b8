"""``for`` loops over a size: one operator for all trip counts."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from magpy_like.graph_operators.control_operators import for_loop
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks
from tests.control_flow.loops.loop_checks import has_loop
from tests.seeding import seed
from zoo.lstm import LSTM

WEIGHT = torch.linspace(-1, 1, 9).reshape(3, 3)


def last_state(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = torch.tanh(h @ WEIGHT + x[t])
    return h


def stacked(x):
    h, found = x[0] * 0, []
    for t in range(x.size(0)):
        h = torch.tanh(h @ WEIGHT + x[t])
        found.append(h)
    return torch.stack(found, 1), h


def joined(x):
    found = [x[0] * 2]
    for t in range(len(x)):
        found.append(x[t] * t)
    return torch.cat(found)


def extended(x):
    h, found, pairs = x[0] * 0, [], [x[0] * 3]
    for t in range(x.shape[0]):
        h = h + x[t]
        found += [h]
        pairs.extend((h * 2, h * 3))
    return torch.stack(found), pairs


def list_of_results(x):
    h, found = x[0] * 0, []
    for t in range(x.shape[0]):
        h = h + x[t] * 0.5
        found.append(h)
    return found, h


def two_lists(x):
    left, right, h = [], [], x[0] * 0
    for t in range(x.shape[0]):
        h = h * 0.5 + x[t]
        left.append(h)
        right.append(h * 2)
        right.append(h * 3)
    return torch.stack(left), right


def last_element(x):
    found = []
    for t in range(x.shape[0]):
        found.append(x[t] + t)
    return found[-1] * 2


def states_in_a_list(x):
    states = [(x[0] * 0, x[0] * 1) for _ in range(2)]
    for t in range(x.shape[0]):
        y = x[t]
        for i, (h, c) in enumerate(states):
            states[i] = (h + y, c * 0.5)
            y = states[i][0]
    return states


def states_in_a_new_list(x):
    states = [x[0] * 0, x[0] * 1]
    for t in range(x.shape[0]):
        states = [state * 0.5 + x[t] for state in states]
    return states


def tuple_of_states(x):
    state = (x[0] * 0, x[0] * 1)
    for t in range(x.shape[0]):
        h, c = state
        state = (torch.tanh(h + x[t]), c + h)
    return state


def carries_numbers(x):
    total, steps, weight = x[0] * 0, 0, 1.0
    for t in range(x.shape[0]):
        total = total + x[t] * weight
        steps += 1
        weight = weight / 2
    return total, steps, weight


def range_with_a_step(x):
    total = x[0] * 0
    for t in range(1, x.shape[0], 2):
        total = total * 0.5 + x[t]
    return total, t


def backwards(x):
    total = x[0] * 0
    for t in range(x.shape[0] - 1, -1, -1):
        total = total * 0.5 + x[t]
    return total, t


def neighbours(x):
    found = []
    for t in range(x.shape[0] - 1):
        found.append(x[t + 1] - x[t])
    return torch.stack(found)


def loop_over_another_dimension(x):
    x, total = x.t(), 0.0
    for t in range(x.shape[1]):
        total = x[:, t] + total
    return total


def rows(x):
    h = x[0] * 0
    for row in x:
        h = torch.tanh(h + row)
    return h


def enumerated(x):
    h, found = x[0] * 0, []
    for i, row in enumerate(x):
        h = h * 0.5 + row * i
        found.append(h)
    return torch.stack(found), i


def zipped_rows(x):
    found = []
    for left, right in zip(x, x[1:] * 2):
        found.append(left - right)
    return found


def in_a_loop_of_constants(x):
    h = x[0] * 0
    for k in range(9):
        for t in range(x.shape[0]):
            h = h * 0.9 + x[t] * k
    return h


def with_else(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = h + x[t]
    else:
        h = h * 2
    return h


def with_continue(x, skip=False):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = h + x[t]
        if skip:
            continue
        h = h * 0.5
    return h


def with_constant_inner_loop(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        for k in range(3):
            h = h * 0.9 + x[t] * k
    return h, k


def body_in_a_function(x):
    def step(h, y):
        return F.relu(h + y) * 0.5

    h = x[0] * 0
    for t in range(x.shape[0]):
        h = step(h, x[t])
    return h


def length_of_the_list(x):
    found = []
    for t in range(x.shape[0]):
        found.append(x[t] * 2)
    return torch.stack(found).sum(0) / len(found)


def changed_after_the_loop(x):
    h, found = x[0] * 0, []
    for t in range(x.shape[0]):
        h = h + x[t]
        found.append(h)
    h.mul_(3)
    return torch.stack(found), h


def two_loops(x):
    found = []
    for t in range(x.shape[0]):
        found.append(x[t] * 2)
    y = torch.stack(found)
    h = y[0] * 0
    for t in range(y.shape[0]):
        h = h * 0.5 + y[t]
    return h


def reversed_range(x):
    h = x[0] * 0
    for i in reversed(range(x.shape[0])):
        h = h * 0.5 + x[i]
    return h


def reversed_range_with_a_start(x):
    h, found = x[0] * 0, []
    for i in reversed(range(1, x.shape[0])):
        h = h * 0.5 + x[i] * i
        found.append(h)
    return torch.stack(found), i


def enumerated_range(x):
    h = x[0] * 0
    for k, t in enumerate(range(1, x.shape[0])):
        h = h * 0.5 + x[t] * k
    return h, k, t


def enumerated_from_five(x):
    h = x[0] * 0
    for i, row in enumerate(x, 5):
        h = h * 0.5 + row * i
    return h


def unbound_rows(x):
    h = x[0] * 0
    for row in x.unbind():
        h = h * 0.5 + row
    for row in torch.unbind(x, 0):
        h = h * 0.5 + row
    return h


def comprehension(x):
    t, factor = "kept", x[0].cos()
    found = torch.stack([torch.tanh(x[t] * factor) + t for t in range(x.shape[0])])
    return found, t


def comprehension_of_rows(x):
    return torch.cat([row * i for i, row in enumerate(x)]), len([row + 1 for row in x])


def comprehension_backwards(x):
    return torch.stack([x[t] * t for t in reversed(range(x.shape[0]))])


def comprehension_in_a_function(x):
    def rows(factor):
        return [torch.tanh(a * b * factor) for a, b in zip(x, x * 2)]

    return rows(2)[0], torch.stack(rows(3))


def in_place(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h += x[t]
    return h


def fills_a_tensor(x):
    found = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        found[t] = x[t] * 2
    return found


def draws(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = F.dropout(h + x[t], 0.5, True)
    return h


OPERATORS = [
    last_state, stacked, joined, extended, list_of_results, two_lists, last_element,
    states_in_a_list, tuple_of_states, carries_numbers, range_with_a_step, backwards, neighbours,
    with_else, with_continue, rows, enumerated, zipped_rows, in_a_loop_of_constants,
    body_in_a_function, two_loops, length_of_the_list, changed_after_the_loop, reversed_range,
    reversed_range_with_a_start, enumerated_range, enumerated_from_five, unbound_rows,
    comprehension, comprehension_of_rows, comprehension_backwards, comprehension_in_a_function,
    in_place, fills_a_tensor, draws,
]  # fmt: skip


def grows(x):
    h = x[:1]
    for t in range(x.shape[0]):
        h = torch.cat([h, x[t : t + 1]])
    return h


def dtype_changes(x):
    h = x[0] > 0
    for t in range(x.shape[0]):
        h = h + x[t]
    return h


def breaks(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        if t == 5:
            break
        h = h + x[t]
    return h, t


def first_iteration_differs(x):
    h = None
    for t in range(x.shape[0]):
        h = x[t] if h is None else h + x[t]
    return h


def condition_on_its_index(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = h + x[t] if t % 3 else h - x[t]
    return h


def condition_on_its_list(x):
    found = []
    for t in range(x.shape[0]):
        if len(found) < 4:
            found.append(x[t] * 2)
    return found


def counts_in_python(x):
    h, names = x[0] * 0, []
    for t in range(x.shape[0]):
        h = h + x[t]
        names.append(f"step {t}")
    return h, names


def lists_extended_by_each_other(x):
    left, right, more = [], [], [x[0] * 5]
    for t in range(x.shape[0]):
        left += [x[t] * 2]
        right.extend(left)
        left += more
    return left, torch.stack(right)


def extended_by_other_iterables(x):
    left, right, both = [], [], []
    for t in range(x.shape[0]):
        left += (x[t] * k for k in (2, 3))
        right.extend(x[t])
        both += [x[t] * 2] + both[:1]
    return left, right, both


def shared_list(x):
    found = []
    alias = found
    for t in range(x.shape[0]):
        found.append(x[t] * 2)
    return alias[0], len(alias)


def in_a_dictionary(x):
    found = {"h": x[0] * 0}
    for t in range(x.shape[0]):
        found["h"] = found["h"] + x[t]
    return found


def in_an_object(x):
    class Box:
        h = None

    box = Box()
    box.h = x[0] * 0
    for t in range(x.shape[0]):
        box.h = box.h + x[t]
    return box.h


def closes_over(x):
    h, functions = x[0] * 0, []
    for t in range(x.shape[0]):
        functions.append(lambda y, t=t: y * t)
        h = functions[-1](h + x[t])
    return h


def pops(x):
    todo = [x[i] * 2 for i in range(3)]
    h = x[0] * 0
    for t in range(x.shape[0]):
        if todo:
            h = h + todo.pop()
    return h


def index_as_a_size(x):
    rows = []
    for t in range(x.shape[0]):
        rows.append(torch.arange(t + 1).sum() + x[t])
    return rows


def nested(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        for k in range(x.shape[0] - 1):
            h = h * 0.9 + x[t] * x[k]
    return h


def tensor_in_two_lists(x):
    left, right = [], []
    for t in range(x.shape[0]):
        y = x[t] * 2
        left.append(y)
        right.append(y)
    return left, right


def reads_its_results(x):
    found = []
    for t in range(x.shape[0]):
        found.append(x[t] * 2)
    total = 0
    for y in found:
        total = total + y
    return total, found[1:], len(found) > 6, [y * 2 for y in found]


def appends_to_its_results(x):
    found = []
    for t in range(x.shape[0]):
        found.append(x[t] * 2)
    found.append(x[0])
    return torch.stack(found), found


def compares_with_the_first(x):
    first = h = x[0] * 0
    for t in range(x.shape[0]):
        h = h * 0.5 + x[t] if h is first else h + x[t] * 2
    return h


def condition_on_requires_grad(x):
    h = x[0].detach() * 0
    for t in range(x.shape[0]):
        h = h * 0.5 + x[t] if h.requires_grad else h + x[t] * 2
    return h


def zipped(x):
    h = x[0] * 0
    for i, row in zip(range(x.shape[0]), x):
        h = h * 0.5 + row * i
    return h


def rows_selected_by_data(x):
    h = x[0] * 0
    for row in x[x[:, 0] > 0]:
        h = h * 0.5 + row
    return h


def comprehension_with_a_condition(x):
    return [x[t] * t for t in range(x.shape[0]) if t % 2]


def comprehension_with_a_walrus(x):
    return [x[t] + (last := x[t] * t) for t in range(x.shape[0])], last


def comprehension_in_a_comprehension(x):
    return [[x[t] * k for k in range(x.shape[0])] for t in range(x.shape[0])]


def comprehensions_without_an_operator(x):
    return [t for t in range(len(x))], {t: x[t] * t for t in range(len(x))}, [x for _ in x]


def unpacked_comprehension(x):
    first, *rest = [x[t] * t for t in range(x.shape[0])]
    return first, rest, sum(x[t] for t in range(x.shape[0]))


def closures_of_a_comprehension(x):
    return [f(x[0]) for f in [lambda y: y * t for t in range(x.shape[0])]]


def wrapped_twice(x):
    h = x[0] * 0
    for k, t in enumerate(reversed(range(x.shape[0]))):
        h = h * 0.5 + x[t] * k
    return h


def shadowed_reversed(x):
    reversed = iter
    return [x[t] * t for t in reversed(range(x.shape[0]))]


def raises_in_the_last_iteration(x):
    h = x[0] * 0
    for t in range(x.shape[0] + 1):
        h = h + x[t]
    return h


UNROLLED = [
    grows, dtype_changes, breaks, first_iteration_differs, condition_on_its_index,
    condition_on_its_list, counts_in_python, lists_extended_by_each_other,
    extended_by_other_iterables, shared_list, in_a_dictionary, in_an_object, closes_over, pops,
    index_as_a_size, nested, compares_with_the_first, tensor_in_two_lists, reads_its_results,
    appends_to_its_results, condition_on_requires_grad, zipped, raises_in_the_last_iteration,
    rows_selected_by_data, states_in_a_new_list, loop_over_another_dimension,
    with_constant_inner_loop, comprehension_with_a_condition, comprehension_with_a_walrus,
    comprehension_in_a_comprehension, comprehensions_without_an_operator, unpacked_comprehension,
    wrapped_twice, closures_of_a_comprehension, shadowed_reversed,
]  # fmt: skip


CASES = [(program, True) for program in OPERATORS] + [
    (program, training) for program in UNROLLED for training in (False, True)
]


@pytest.mark.parametrize(("program", "training"), CASES, ids=loop_checks.case_id)
def test_loop_over_a_size_equals_eager(program, training):
    loop_checks.check(program, (5, 7, 9, 2, 3, 1, 12, 6, 5), training)


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_trip_counts(program):
    loop_checks.check_one_record(program)


def _first_state_is_none(x):
    h, found = None, []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t]) if h is None else torch.tanh(x[t] + h @ WEIGHT)
        found.append(h)
    return torch.stack(found), h


def _first_iteration_by_its_index(x):
    h, found = x[0] * 0, []
    for t in range(x.shape[0]):
        h = h + 1 if t == 0 else torch.tanh(h @ WEIGHT + x[t] * t)
        if not t:
            h = h - 2
        if 0 < t and not t <= 0 and t != 0:
            h = h * 0.5
        found.append(h)
    return found, h, t


def _range_starts_at_one(x):
    h = None
    for t in range(1, x.shape[0] + 1):
        h = x[t - 1] if t < 2 else h + x[t - 1]
    return h, t


def _nested_loop(x):
    total = None
    for t in range(x.shape[0]):
        row = None
        for _ in range(2):
            row = x[t] if row is None else row * 2
        total = row if total is None else total + row
    return total


def _first_row(x):
    h, found = None, []
    for row in x:
        h = torch.tanh(row) if h is None else torch.tanh(row + h @ WEIGHT)
        found.append(h)
    return torch.stack(found), h


def _first_enumerated_row(x):
    h = None
    for i, row in enumerate(x, 2):
        h = row * i if h is None else torch.tanh(h @ WEIGHT + row * i)
    return h, i, row


def _first_zipped_rows(x):
    total = 0
    for row, other in zip(x, x * 2):
        total = total + (row * other).sum(0)
    return total


def _first_element(x):
    h = None
    for y in x.unbind(0):
        h = y if h is None else h @ WEIGHT + y
    return h


FIRST_DIFFERS = [
    _first_state_is_none, _first_iteration_by_its_index, _range_starts_at_one, _nested_loop,
    _first_row, _first_enumerated_row, _first_zipped_rows,
    _first_element,
]  # fmt: skip


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", FIRST_DIFFERS)
def test_iterations_after_a_different_first_one_are_one_operator(program, training):
    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for steps in (5, 7, 30, 3, 12):
        found = []
        for run in (fast, program):
            seed(steps)
            x = torch.randn(steps, 4, 3, requires_grad=training)
            result = run(x)
            if training:
                torch.cat([t.flatten() for t in _tensors(result)]).pow(2).sum().backward()
            found.append((result, x.grad))
        assert_same(*found)
    (record,) = magpy.api._dispatcher(fast).records
    assert [node.target for node in record.graph.graph.nodes].count(for_loop) == 1
    assert magpy.cache_info(fast)[:4] == (3, 2, 1, 1)
    for steps in (2, 1):
        assert_same(fast(torch.ones(steps, 4, 3)), program(torch.ones(steps, 4, 3)))
    assert magpy.cache_info(fast).hits == 3, "no iterations follow the first one"


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, list | tuple) else []


def _second_iteration_differs(x):
    h = x[0]
    for t in range(x.shape[0]):
        h = h + x[t] if t == 1 else h * 0.5
    return h


def _returns_in_the_first_iteration(x):
    h = None
    for t in range(x.shape[0]):
        if h is not None:
            h = h * 2
        elif x.shape[1] == 4:
            return x[t] + x.shape[0]
        else:
            h = x[t]
    return h


def _breaks_in_the_first_iteration(x):
    h, last = None, 0
    for t in range(x.shape[0]):
        h = x[t] if h is None else h * t
        last = t
        if t == 0:
            break
    return h, last, x.shape[0]


def _splits_in_the_first_iteration(x):
    h = None
    for t in range(x.shape[0]):
        if h is None:
            with open("/dev/null", "w") as log:
                log.write("first")
        h = x[t] if h is None else torch.tanh(h + x[t])
    return h


def _splits_in_the_first_row(x):
    h = None
    for row in x:
        if h is None:
            with open("/dev/null", "w") as log:
                log.write("first")
        h = row if h is None else torch.tanh(h + row)
    return h


def _raises_in_the_first_iteration(x):
    h = None
    for t in range(x.shape[0]):
        try:
            h = x[t] + h
        except TypeError:
            h = x[t] * 2
    return h


def _returns_in_the_first_row(x):
    h = None
    for i, row in enumerate(x):
        if h is not None:
            h = h * i
        elif x.shape[1] == 4:
            return row
        else:
            h = row
    return h


def _breaks_in_first_rows(x):
    h, ends = None, []
    for _ in range(2):
        for row, other in zip(x, x * 2):
            h = row if h is None else h * 2 + other
            if len(ends) == 0:
                ends.append(h)
                break
    return h, ends


def _appends_to_the_list_it_iterates_over(x):
    found, h = [row * 2 for row in x], None
    for y in found:
        h = y if h is None else torch.tanh(h + y)
        if len(found) == x.shape[0]:
            found.append(x[0])
    return h, found


def _changes_rows_in_the_first_iteration(x):
    y, h = x * 2, None
    for row in y:
        h = row.add_(1) if h is None else torch.tanh(h + row)
    return h, y


def _reads_the_whole_list_in_the_first_iteration(x):
    found, h = [row * 2 for row in x], None
    for y in found:
        h = torch.stack([*found]).sum(0) if h is None else torch.tanh(h + y)
    return h


@pytest.mark.parametrize(
    "program",
    [
        _returns_in_the_first_row, _breaks_in_first_rows, _appends_to_the_list_it_iterates_over,
        _changes_rows_in_the_first_iteration, _reads_the_whole_list_in_the_first_iteration,
        _second_iteration_differs, _returns_in_the_first_iteration, _breaks_in_the_first_iteration,
        _splits_in_the_first_iteration, _splits_in_the_first_row, _raises_in_the_first_iteration,
    ],
)  # fmt: skip
def test_loop_with_an_irregular_first_iteration_equals_eager(program):
    fast = magpy.compile(program, backend="eager")
    for steps in (5, 7, 3, 2, 5, 1, 12, 7):
        x = torch.randn(steps, 4, 3)
        assert_same(fast(x), program(x))


def test_loop_stays_unrolled_until_its_trip_count_varies_even_with_dynamic_sizes():
    fast, operators = magpy.compile(stacked, backend="eager", dynamic=True), []
    for steps, rows in ((4, 2), (4, 5), (6, 5), (9, 3), (4, 2), (30, 2)):
        x = torch.randn(steps, rows, 3)
        assert_same(fast(x), stacked(x))
        (record,) = magpy.api._dispatcher(fast).records
        operators.append(any(node.target is for_loop for node in record.graph.graph.nodes))
    assert operators == [False, False, True, True, True, True]
    assert magpy.cache_info(fast).misses == 2


def test_loop_that_raises_in_an_iteration_raises_eagers_error():
    fast = magpy.compile(raises_in_the_last_iteration, backend="eager")
    for size in (5, 7, 9):
        with pytest.raises(IndexError, match=f"index {size} is out of bounds"):
            fast(torch.ones(size, 3))


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_lstm_over_varying_steps_is_one_graph_with_one_loop(backend):
    compiled = []

    def counted(graph, example_inputs):
        compiled.append(graph)
        return compile_fx(graph, example_inputs) if backend == "magpy" else graph.forward

    generator = random.Random(0)
    model = LSTM(8, 8, 3)
    reference = copy.deepcopy(model)
    fast = magpy.compile(model, backend=counted, fullgraph=True)
    for i in range(20):
        if i == 5:
            parts = len(compiled)
        steps = generator.randint(2, 24) if i else 3  # the first ones are compiled unrolled
        inputs = torch.randn(steps, 4, 8)
        found = []
        for run, module in ((fast, model), (reference, reference)):
            argument = inputs.clone().requires_grad_()
            result = run(argument)
            sum(t.sum() for t in (result[0], *result[1][2])).backward()
            found.append((result, argument.grad, [p.grad for p in module.parameters()]))
            module.zero_grad()
        assert_same(*found, rtol=1e-3, atol=1e-5)
    info = magpy.cache_info(fast)
    assert (info.hits, info.misses, info.graphs) == (18, 2, 1)
    assert len(compiled) == parts, "no part is compiled again for another number of steps"
    assert has_loop(fast, inputs)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.out = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        y, h, found = torch.tanh(x * 2), x.new_zeros(x.shape[1], 8), []
        for t in range(x.shape[0]):
            h = torch.tanh(self.step(y[t]) + h)
            found.append(h)
        z = torch.stack(found)
        return self.out(z).softmax(-1) + z.mean(0).sum(), z.flatten(0, 1).relu()


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_code_before_and_after_a_loop_is_compiled_for_all_sizes(training):
    compiled = []

    def counted(graph, example_inputs):
        compiled.append(graph)
        return compile_fx(graph, example_inputs, options={"strict": True})

    model = Tagger()
    fast = magpy.compile(model, backend=counted, fullgraph=True)
    for i, steps in enumerate((5, 7, 9, 20, 3, 2, 12)):
        if i == 4:
            parts = len(compiled)
        inputs, found = torch.randn(steps, 4, 8), []
        for run in (fast, model):
            with torch.set_grad_enabled(training):
                result = run(inputs)
            if training:
                model.zero_grad()
                (result[0].pow(2).sum() + result[1].sum()).backward()
            found.append((result, [p.grad for p in model.parameters()]))
        assert_same(*found, rtol=1e-3, atol=1e-5)
    assert magpy.cache_info(fast).hits == 5
    assert len(compiled) == parts <= 10, "parts compiled after two sizes serve all others"

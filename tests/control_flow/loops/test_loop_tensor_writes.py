"""Tensors that iterations write into, and the loop operators that result."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks


def summed(x):
    h = torch.zeros(3)
    for t in range(x.shape[0]):
        h += x[t] * t
    return h


def several_in_place(x):
    a, b = torch.ones(3), torch.zeros(3)
    for row in x:
        a.mul_(0.5).add_(row)
        b.copy_(torch.tanh(a + b))
    return a, b


def changed_in_a_function(x):
    def add(total, row):
        total += row
        return total * 2

    h, found = torch.zeros(3), []
    for row in x:
        found.append(add(h, row))
    return h, found


def clones_in_a_list(x):
    h, found = torch.zeros(3), []
    for t in range(x.shape[0]):
        h -= x[t]
        found.append(h.clone())
    return torch.stack(found), h


def filled(x):
    found = torch.empty_like(x)
    for t in range(x.shape[0]):
        found[t] = x[t] * 2
    return found


def filled_next_to_a_state(x):
    h, wide = torch.zeros(3), torch.full((x.shape[0] + 2, 3), 7.0, dtype=torch.float64)
    states = torch.zeros(x.shape)
    for i, row in enumerate(x):
        h = torch.tanh(h + row)
        states[i], wide[i] = h, row
    return states.sum(), states, wide, h


def filled_with_changing_tensors(x):
    h, before, after = torch.zeros(3), torch.zeros(x.shape), torch.zeros(x.shape)
    for t in range(x.shape[0]):
        y = x[t] * 2
        before[t] = y
        y.add_(h)
        h += y
        after[t] = h
        h.mul_(0.5)
    return before, after, h


def filled_with_a_step(x):
    found = torch.ones(x.shape)
    for t in range(1, x.shape[0] - 1, 2):
        found[t] = x[t + 1] * 3
    return found


def filled_the_next_row(x):
    found, h = torch.zeros(x.shape[0] + 1, 3), torch.ones(3)
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        found[t + 1] = h
    return found, h


def filled_the_previous_row(x):
    found, h = torch.full((x.shape[0], 3), 5.0), torch.ones(3)
    for t in range(1, x.shape[0]):
        h = h * 0.5 + x[t]
        found[t - 1] = h
    return found


def filled_columns(x):
    found, wide, h = torch.zeros(2, x.shape[0]), torch.ones(3, x.shape[0] + 1, 2), torch.ones(3)
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        found[:, t] = h[:2]
        wide[:, t + 1, :] = torch.stack([h, x[t]], 1)
    return found, wide


def filled_backwards(x):
    found, h = torch.zeros(x.shape), torch.ones(3)
    for t in reversed(range(x.shape[0])):
        h = h * 0.5 + x[t]
        found[t] = h
    return found


def filled_backwards_by_two(x):
    found = torch.zeros(x.shape[0] + 3, 3, dtype=torch.float64)
    for t in range(x.shape[0] - 1, 0, -2):
        found[t + 3] = x[t] * t
    return found


OPERATORS = [filled_the_next_row, filled_the_previous_row, filled_columns, filled_backwards,
             filled_backwards_by_two, summed, several_in_place,
             changed_in_a_function, clones_in_a_list, filled, filled_next_to_a_state,
             filled_with_changing_tensors]  # fmt: skip


def aliased(x):
    h = other = torch.zeros(3)
    for t in range(x.shape[0]):
        h += x[t]
    return h, other * 2


def read_through_a_view(x):
    h = torch.zeros(3)
    view = h[1:]
    for t in range(x.shape[0]):
        h += x[t]
    return h, view


def in_a_list(x):
    states = [torch.zeros(3)]
    h = states[0]
    for t in range(x.shape[0]):
        h += x[t]
    return states


def in_a_closure(x):
    h = torch.zeros(3)

    def add(row):
        h.add_(row)

    for t in range(x.shape[0]):
        add(x[t])
    return h


def default_argument(x):
    h = torch.zeros(3)

    def double(h=h):
        return h * 2

    for t in range(x.shape[0]):
        h += x[t]
    return double()


def shared_with_an_array(x):
    h = torch.zeros(3)
    array = h.numpy()
    for t in range(x.shape[0]):
        h += x[t]
    return h, float(array.sum())


def view_of_an_argument(x):
    h = x[0]
    for t in range(1, x.shape[0]):
        h += x[t]
    return h


def appended_after_each_write(x):
    h, found = torch.zeros(3), []
    for t in range(x.shape[0]):
        h += x[t]
        found.append(h)
    return found


def view_outlives_the_loop(x):
    h, view = torch.zeros(3), None
    for t in range(x.shape[0]):
        h += x[t]
        view = h[1:]
    return h, view


def carried_under_another_name(x):
    h = torch.zeros(3)
    before = h.clone()
    for t in range(x.shape[0]):
        before = h
        h += x[t]
    return h, before


def replaced_after_the_write(x):
    h = torch.zeros(3)
    for t in range(x.shape[0]):
        h += x[t]
        h = h * 2
    return h


def swapped(x):
    a, b = torch.zeros(3), torch.ones(3)
    for t in range(x.shape[0]):
        a += x[t]
        a, b = b, a
    return a, b


def partly_written(x):
    h = torch.zeros(3)
    for t in range(x.shape[0]):
        h[1:].add_(x[t][1:])
    return h


def fills_from_the_previous_row(x):
    found = torch.zeros(x.shape[0] + 1, 3)
    for t in range(x.shape[0]):
        found[t + 1] = found[t] + x[t]
    return found


def filled_and_read(x):
    found = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        found[t] = x[t] + found.sum()
    return found


def filled_and_carried(x):
    found, other = torch.zeros(x.shape), None
    for t in range(x.shape[0]):
        found[t] = x[t] * 2
        other = found
    return found, other


def filled_from_negative_indices(x):
    found = torch.zeros(x.shape)
    for t in range(-2, x.shape[0]):
        found[t] = x[t] + t
    return found


def filled_by_broadcasting(x):
    found = torch.zeros(x.shape[0], 2, 3)
    for t in range(x.shape[0]):
        found[t] = x[t]
    return found


def filled_with_numbers(x):
    found = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        found[t] = t
    return found


def filled_out_of_range(x):
    found = torch.zeros(7, 3)
    for t in range(x.shape[0]):
        found[t] = x[t]
    return found


def filled_twice(x):
    found = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        found[t] = x[t] * 2
    for t in range(x.shape[0]):
        found[t] = x[t] * 3
    twice = found + 1
    found.zero_()
    return found, twice


def filled_a_row_out_of_range(x):
    found = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        found[t + 1] = x[t] * 2
    return found


def filled_far_before_the_index(x):
    found = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        found[t - 6] = x[t] * t
    return found


def filled_partial_rows(x):
    found = torch.zeros(x.shape)
    for t in range(x.shape[0]):
        found[t, 1:] = x[t, 1:] * 2
    return found


def filled_diagonal(x):
    found = torch.zeros(x.shape[0], x.shape[0])
    for t in range(x.shape[0]):
        found[t, t] = x[t, 0] * 2
    return found


OTHERS = [
    aliased, read_through_a_view, in_a_list, in_a_closure, default_argument, shared_with_an_array,
    view_of_an_argument, appended_after_each_write, view_outlives_the_loop,
    carried_under_another_name, replaced_after_the_write, swapped, partly_written,
    fills_from_the_previous_row, filled_and_read, filled_a_row_out_of_range,
    filled_far_before_the_index, filled_partial_rows, filled_diagonal, filled_from_negative_indices,
    filled_by_broadcasting, filled_with_numbers, filled_out_of_range, filled_with_a_step,
    filled_twice, filled_and_carried,
]  # fmt: skip


CASES = [(program, True) for program in OPERATORS] + [
    (program, training) for program in OTHERS for training in (False, True)
]


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize(("program", "training"), CASES, ids=loop_checks.case_id)
def test_loop_that_writes_into_a_tensor_equals_eager(program, training):
    loop_checks.check(program, (5, 7, 9, 3, 6, 9), training)


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_trip_counts(program):
    loop_checks.check_one_record(program)


@pytest.mark.parametrize("program", [several_in_place, filled_next_to_a_state])
def test_compiled_loop_that_writes_equals_eager(program):
    fast = magpy.compile(program)
    for i, size in enumerate([5, 7, 12, 4]):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(i))
        assert_same(fast(x), program(x), rtol=1e-5, atol=1e-6)
    assert magpy.cache_info(fast)[:2] == (2, 2)


@pytest.mark.parametrize("program", [appended_after_each_write, filled_and_carried, aliased])
def test_aliases_of_a_written_tensor_stay_one_object(program):
    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for size in (5, 7, 9):
        found = fast(torch.ones(size, 3))
        if program is aliased:
            assert_same(found[1], found[0] * 2)
        else:
            assert all(tensor is found[0] for tensor in found)

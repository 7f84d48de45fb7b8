"""Loop-carried tensors that exist before the iteration: carried values, rows, views."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow.loops import loop_checks


def alternates(x):
    a, b = x[0] * 0, x[0] * 1
    for t in range(x.shape[0]):
        a, b = b, torch.tanh(a + x[t])
    return a, b


def alternates_in_a_list(x):
    states = [x[0] * 0, x[0] * 1]
    for row in x:
        states[0], states[1] = states[1], torch.tanh(states[0] + row)
    return states


def swaps(x):
    a, b = x[0] * 0, x[0] * 1
    for _ in range(x.shape[0]):
        a, b = b, a
    return a, b


def keeps_the_previous_state(x):
    before = y = x[0] * 1
    for t in range(x.shape[0]):
        old = y
        y = torch.tanh(y + x[t]) + 0.5 * (y - before)
        before = old
    return y, before


def uses_the_previous_row(x):
    previous, h, found = x[0], x[0] * 0, []
    for row in x:
        h = torch.tanh(h + previous)
        found.append(h)
        previous = row
    return torch.stack(found), previous


def collects_views(x):
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return found


def collects_previous_states(x):
    h, found = x[0] * 0, []
    for t in range(x.shape[0]):
        found.append(h)
        h = h + x[t]
    return found, h


def collects_its_argument(x):
    h, found = x, []
    for _ in range(x.shape[0]):
        found.append(h)
        h = torch.tanh(h)
    return found, h


def skips_some_iterations(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        if x[t].sum() > 0:
            continue
        h = h + x[t]
    return h


OPERATORS = [
    alternates, alternates_in_a_list, swaps, keeps_the_previous_state, uses_the_previous_row,
    collects_views, collects_previous_states, collects_its_argument, skips_some_iterations,
]  # fmt: skip


def _rotates(x):
    a, b, c = x[0] * 0, x[0] * 1, x[0] * 2
    for t in range(x.shape[0]):
        a, b, c = b, c, a * 0.5 + x[t]
    return a, b, c


def rotates(x):
    return _rotates(x)


def changes_the_first_of_three(x):
    a, b, c = _rotates(x)
    a.mul_(3)
    return a, b, c


def changes_an_initial_value(x):
    a, b, c = x[0] * 0, x[0] * 1, x[0] * 2
    last = c
    for t in range(x.shape[0]):
        a, b, c = b, c, a * 0.5 + x[t]
    last.add_(1)
    return a * 2, b, c, last


def compares_identity(x):
    a, b, c = x[0] * 0, x[0] * 1, x[0] * 2
    last = c
    for t in range(x.shape[0]):
        a, b, c = b, c, a * 0.5 + x[t]
    return a + 1 if a is last else a - 1


def last_element_aliases_a_carried_value(x):
    a, b, c, found = x[0] * 0, x[0] * 1, x[0] * 2, []
    for t in range(x.shape[0]):
        found.append(a)
        a, b, c = b, c, a * 0.5 + x[t]
    return found[-1] * 2, torch.stack(found)


def changes_an_element(x):
    left, right, h = [], [], x[0] * 1
    for t in range(x.shape[0]):
        left.append(h)
        h = h + x[t]
        right.append(h)
    right[0].add_(1)
    return torch.stack(left), torch.stack(right)


def changes_a_row(x):
    y, last = x * 2, None
    for t in range(y.shape[0]):
        last = y[t]
    last.add_(1)
    return last, y


def carries_the_tensor_that_it_writes(x):
    h, before = torch.zeros(3), torch.ones(3)
    for t in range(x.shape[0]):
        before = h
        h += x[t]
    return h, before


def external_tensor_in_two_variables(x):
    external, a, b = x * 3, x * 1, x * 1
    for _ in range(x.shape[0]):
        b = a
        a = external
    a.mul_(2)
    return a, b, external, a is b


OTHERS = [
    rotates, changes_the_first_of_three, changes_an_initial_value, compares_identity,
    last_element_aliases_a_carried_value, changes_an_element, changes_a_row,
    carries_the_tensor_that_it_writes, external_tensor_in_two_variables,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=loop_checks.case_id)
def test_one_record_serves_all_trip_counts(program):
    loop_checks.check_one_record(program)


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("sizes", [(2, 3, 5, 7, 1, 4), (7, 5, 2, 3, 9)], ids=["few", "many"])
@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loop_checks.case_id)
def test_carried_tensors_equal_eagers(program, sizes):
    loop_checks.check(program, sizes, training=True)


@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loop_checks.case_id)
def test_carried_tensors_alias_as_in_eager(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for size in (3, 5, 2, 7):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
        found = []
        for run in (fast, program):
            argument = x.clone()
            tensors = [t for t in torch.utils._pytree.tree_leaves((run(argument), argument))]
            tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
            objects = {id(t): i for i, t in enumerate(tensors)}
            memory = {t.untyped_storage().data_ptr(): i for i, t in enumerate(tensors)}
            found.append(
                [(objects[id(t)], memory[t.untyped_storage().data_ptr()]) for t in tensors]
            )
        assert_same(*found)


@pytest.mark.parametrize("program", [uses_the_previous_row, collects_previous_states])
def test_compiled_iterations_carry_existing_tensors(program):
    fast = magpy.compile(program)
    for i, size in enumerate([5, 7, 12, 2]):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(i))
        assert_same(fast(x), program(x), rtol=1e-5, atol=1e-6)
    assert magpy.cache_info(fast)[:2] == (2, 2)

"""Rounds of a loop that hand on tensors which they have not made: what they were given, rows and
views of what was there before, and that itself."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.control_flow import loops


def takes_turns(x):
    a, b = x[0] * 0, x[0] * 1
    for t in range(x.shape[0]):
        a, b = b, torch.tanh(a + x[t])
    return a, b


def takes_turns_in_a_list(x):
    states = [x[0] * 0, x[0] * 1]
    for row in x:
        states[0], states[1] = states[1], torch.tanh(states[0] + row)
    return states


def swaps(x):
    a, b = x[0] * 0, x[0] * 1
    for _ in range(x.shape[0]):
        a, b = b, a
    return a, b


def remembers_the_state_before(x):
    before = y = x[0] * 1
    for t in range(x.shape[0]):
        old = y
        y = torch.tanh(y + x[t]) + 0.5 * (y - before)
        before = old
    return y, before


def is_given_the_row_before(x):
    given, h, found = x[0], x[0] * 0, []
    for row in x:
        h = torch.tanh(h + given)
        found.append(h)
        given = row
    return torch.stack(found), given


def keeps_views(x):
    found = []
    for t in range(x.shape[0]):
        found.append(x[t])
    return found


def keeps_what_was_there(x):
    h, found = x[0] * 0, []
    for t in range(x.shape[0]):
        found.append(h)
        h = h + x[t]
    return found, h


def keeps_its_argument(x):
    h, found = x, []
    for _ in range(x.shape[0]):
        found.append(h)
        h = torch.tanh(h)
    return found, h


def leaves_some_rounds_out(x):
    h = x[0] * 0
    for t in range(x.shape[0]):
        if x[t].sum() > 0:
            continue
        h = h + x[t]
    return h


OPERATORS = [
    takes_turns, takes_turns_in_a_list, swaps, remembers_the_state_before, is_given_the_row_before,
    keeps_views, keeps_what_was_there, keeps_its_argument, leaves_some_rounds_out,
]  # fmt: skip


def _rotates(x):
    a, b, c = x[0] * 0, x[0] * 1, x[0] * 2
    for t in range(x.shape[0]):
        a, b, c = b, c, a * 0.5 + x[t]
    return a, b, c


def rotates(x):
    return _rotates(x)


def first_one_that_rotates_is_changed(x):
    a, b, c = _rotates(x)
    a.mul_(3)
    return a, b, c


def what_was_there_is_changed(x):
    a, b, c = x[0] * 0, x[0] * 1, x[0] * 2
    last = c
    for t in range(x.shape[0]):
        a, b, c = b, c, a * 0.5 + x[t]
    last.add_(1)
    return a * 2, b, c, last


def asks_which_one_it_is(x):
    a, b, c = x[0] * 0, x[0] * 1, x[0] * 2
    last = c
    for t in range(x.shape[0]):
        a, b, c = b, c, a * 0.5 + x[t]
    return a + 1 if a is last else a - 1


def last_of_a_list_is_known_otherwise(x):
    a, b, c, found = x[0] * 0, x[0] * 1, x[0] * 2, []
    for t in range(x.shape[0]):
        found.append(a)
        a, b, c = b, c, a * 0.5 + x[t]
    return found[-1] * 2, torch.stack(found)


def element_is_changed(x):
    left, right, h = [], [], x[0] * 1
    for t in range(x.shape[0]):
        left.append(h)
        h = h + x[t]
        right.append(h)
    right[0].add_(1)
    return torch.stack(left), torch.stack(right)


def row_is_changed(x):
    y, last = x * 2, None
    for t in range(y.shape[0]):
        last = y[t]
    last.add_(1)
    return last, y


def hands_on_what_it_writes_into(x):
    h, before = torch.zeros(3), torch.ones(3)
    for t in range(x.shape[0]):
        before = h
        h += x[t]
    return h, before


def one_in_two_places(x):
    there, a, b = x * 3, x * 1, x * 1
    for _ in range(x.shape[0]):
        b = a
        a = there
    a.mul_(2)
    return a, b, there, a is b


OTHERS = [
    rotates, first_one_that_rotates_is_changed, what_was_there_is_changed, asks_which_one_it_is,
    last_of_a_list_is_known_otherwise, element_is_changed, row_is_changed,
    hands_on_what_it_writes_into, one_in_two_places,
]  # fmt: skip


@pytest.mark.parametrize("program", OPERATORS, ids=loops.name)
def test_one_record_serves_every_number_of_rounds_that_hand_on_what_was_there(program):
    loops.check_one_record(program)


@pytest.mark.filterwarnings("ignore:magpy_like. a record of")
@pytest.mark.parametrize("sizes", [(2, 3, 5, 7, 1, 4), (7, 5, 2, 3, 9)], ids=["few", "many"])
@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loops.name)
def test_rounds_hand_on_what_eager_hands_on(program, sizes):
    loops.check(program, sizes, training=True)


@pytest.mark.parametrize("program", [*OPERATORS, *OTHERS], ids=loops.name)
def test_what_rounds_hand_on_is_one_tensor_where_it_is_in_eager(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    for size in (3, 5, 2, 7):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
        found = []
        for run in (fast, program):
            given = x.clone()
            tensors = [t for t in torch.utils._pytree.tree_leaves((run(given), given))]
            tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
            objects = {id(t): i for i, t in enumerate(tensors)}
            memory = {t.untyped_storage().data_ptr(): i for i, t in enumerate(tensors)}
            found.append(
                [(objects[id(t)], memory[t.untyped_storage().data_ptr()]) for t in tensors]
            )
        assert_same(*found)


@pytest.mark.parametrize("program", [is_given_the_row_before, keeps_what_was_there])
def test_compiled_rounds_hand_on_what_was_there(program):
    fast = magpy.compile(program)
    for i, size in enumerate([5, 7, 12, 2]):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(i))
        assert_same(fast(x), program(x), rtol=1e-5, atol=1e-6)
    assert magpy.cache_info(fast)[:2] == (2, 2)

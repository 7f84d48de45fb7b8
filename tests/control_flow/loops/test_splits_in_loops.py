"""Splits inside loops: the remaining iterator becomes an external variable."""

import inspect
import sys

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

LOG = []


@magpy.disable
def opaque(value):
    LOG.append(value)
    return len(LOG)


def outcome(program, *args):
    LOG.clear()
    try:
        result = program(*args)
    except (ValueError, RuntimeError) as error:
        result = (type(error).__name__, str(error))
    return result, list(LOG)


def over_a_range(x, n):
    for i in range(n):
        x = x * (i + 1)
        opaque(i)
    return x


def over_enumerate(x, factors):
    for i, factor in enumerate(factors):
        x = x * factor + i
        opaque(i)
    return x


def over_zip(x, factors):
    for (a, b), c in zip(zip(factors, factors[1:]), factors):
        x = x * a - b
        opaque(c)
    return x


def over_items(x, factors):
    table = {str(f): f for f in factors}
    for name, factor in table.items():
        opaque(name)
        x = x * factor
    return x, table


def backwards(x, factors):
    for factor in reversed(factors):
        x = x * factor
        opaque(factor)
    return x


def nested(x, n):
    for i in range(n):
        for j in range(i):
            x = x + i * j
            opaque((i, j))
    return x


def breaks_early(x, factors):
    for factor in factors:
        opaque(factor)
        if factor > 2:
            break
        x = x * factor
    else:
        x = x - 1
    return x


def grows(x, factors):
    todo = list(factors)
    for factor in todo:
        opaque(factor)
        x = x * factor
        if len(todo) < 5:
            todo.append(factor + 1)
    return x, todo


def pairs_from_one_iterator(x, factors):
    numbers = iter(factors)
    for a, b in zip(numbers, numbers):
        opaque((a, b))
        x = x * a + b
    return x


def iterator_under_two_names(x, factors):
    numbers = iter(factors)
    for a in numbers:
        opaque(a)
        x = x * a + next(numbers, 0)
    return x


def strict(x, factors):
    for a, b in zip(factors, factors[1:], strict=True):
        opaque(a)
        x = x * a + b
    return x


def dictionary_that_grows(x, factors):
    table = dict.fromkeys(factors)
    for key in table:
        opaque(key)
        table[key + 1] = x = x * key
    return x


NUMBERS = [over_a_range, nested]
LISTS = [
    over_enumerate, over_zip, over_items, backwards, breaks_early, grows, pairs_from_one_iterator,
    iterator_under_two_names, strict, dictionary_that_grows,
]  # fmt: skip


@pytest.mark.parametrize("program", NUMBERS + LISTS, ids=lambda program: program.__name__)
def test_loop_continues_after_a_split_as_in_eager_mode(program):
    fast = magpy.compile(program, backend="eager")
    sizes = [3, 3, 2, 4, 0, 1, 3]
    lists = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 4.0], [], [2.0, 2.5, 2.0, 1.0], [3.0], [1, 2]]
    for i, argument in enumerate(sizes if program in NUMBERS else lists):
        x = torch.full((2,), 1.0 + i)
        twin = list(argument) if isinstance(argument, list) else argument
        assert_same((*outcome(fast, x, argument), argument), (*outcome(program, x, twin), twin))


def test_iterations_share_a_record():
    fast = magpy.compile(over_a_range, backend="eager")
    x = torch.ones(2)
    outcome(fast, x, 20)
    known = magpy.cache_info(fast)
    assert known.graphs <= 4, "the iterations differ in a number only"
    assert_same(outcome(fast, x, 20), outcome(over_a_range, x, 20))
    info = magpy.cache_info(fast)
    assert (info.hits, info.records) == (1, known.records)


def test_loop_with_many_splits_does_not_nest_frames():
    fast = magpy.compile(over_a_range, backend="eager")
    x = torch.zeros(2)
    outcome(fast, x, 3)
    hits, limit = magpy.cache_info(fast).hits, sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)
    try:
        for _ in range(2):
            assert_same(outcome(fast, x, 250), outcome(over_a_range, x, 250))
    finally:
        sys.setrecursionlimit(limit)
    assert magpy.cache_info(fast).hits == hits + 1


def test_iterator_of_the_caller_is_advanced():
    def program(x, numbers):
        for n in numbers:
            x = x * n
            if n % 3 == 0:
                break
        return x

    fast = magpy.compile(program, backend="eager")
    mine, theirs = iter([1, 2, 3, 4, 6, 1, 2, 3, 7]), iter([1, 2, 3, 4, 6, 1, 2, 3, 7])
    for _ in range(5):
        x = torch.ones(2)
        assert_same(outcome(fast, x, mine), outcome(program, x, theirs))
    assert magpy.cache_info(fast).records >= 3


def test_iterators_that_become_one_object_must_miss():
    def program(x, left, right):
        for a in left:
            for b in right:
                return x * a + b
        return x

    fast = magpy.compile(program, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        assert_same(fast(x, iter([1, 2]), iter([1, 2])), program(x, iter([1, 2]), iter([1, 2])))
    one, other = iter([1, 2]), iter([1, 2])
    assert_same(fast(x, one, one), program(x, other, other))
    assert list(one) == list(other)


def test_growth_of_a_list_under_an_external_iterator_is_observed():
    def program(x, items, iterator):
        items.append(5.0)
        for item in iterator:
            x = x * item
        return x

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        mine, theirs = [1.0, 2.0], [1.0, 2.0]
        x = torch.ones(2)
        assert_same(fast(x, mine, iter(mine)), program(x, theirs, iter(theirs)))
        assert mine == theirs


def grown_before_a_split(first, n):
    found = [first]
    for _ in range(n):
        found.append(torch.ones(1))
    opaque(n)
    return found


def ends_of_a_grown_list(first, n):
    found = [first, first]
    for _ in range(n):
        found.append(torch.ones(1))
    return found[0], found[-1], found[::-1]


def grown_in_a_dictionary(first, n):
    found = {"all": [first], "first": first}
    for _ in range(n):
        found["all"].append(torch.ones(1))
    opaque(n)
    return found


def loop_over_a_grown_list(first, n):
    found = [first]
    for _ in range(n):
        found.append(torch.ones(1))
    return [(i, item) for i, item in enumerate(found)], [item for item in reversed(found)]


def grown_until_data_decides(first, n):
    x, found = torch.tensor(float(n)), [first]
    while x > 0:
        x = x - 1
        found.append(x)
    opaque(n)
    return found, found[-1]


@pytest.mark.parametrize(
    "first", [5, 2.5, "text", None, (1, 2), True, [1], {1: 2}, torch.zeros(1)], ids=repr
)
@pytest.mark.parametrize(
    "program",
    [
        grown_before_a_split, ends_of_a_grown_list, grown_in_a_dictionary, loop_over_a_grown_list,
        grown_until_data_decides,
    ],
)  # fmt: skip
def test_a_list_that_grows_may_begin_with_anything(program, first):
    fast = magpy.compile(lambda n: program(first, n), backend="eager")
    for n in (3, 2, 2, 1, 0, 3):
        assert_same(outcome(fast, n), outcome(program, first, n))

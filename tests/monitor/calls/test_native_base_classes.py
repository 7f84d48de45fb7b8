"""Native constructors and methods that Python classes inherit: reads of their arguments."""

import collections
import operator

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")


class Row(list):
    pass


class Pair(tuple):
    pass


class Members(set):
    pass


class Queue(collections.deque):
    pass


class Table(dict):
    pass


class Whole(int):
    pass


class Fraction(float):
    pass


class Text(str):
    pass


MAY_CREATE = {
    "list": lambda given: Row(given)[0],
    "its length": lambda given: len(Row(given)),
    "tuple": lambda given: Pair(given)[1],
    "set": lambda given: len(Members(given)),
    "deque": lambda given: Queue(given)[-1],
    "dict": lambda given: Table({1: 2, 3: given[0]})[3],
    "keys": lambda given: Table(zip(given, "ab", strict=False)).get(2),
    "pairs": lambda given: Table([(given[0], 1), (2, 5)])[2],
    "integer": lambda given: Whole(given[0]) * 2,
    "its value": lambda given: Whole(given[0]) == 2,
    "fraction": lambda given: Fraction(given[1]) + 1,
    "text": lambda given: len(Text(given[0])),
    "user list": lambda given: collections.UserList(given)[0],
    "slice": lambda given: _with_slice(given)[1],
    "item": lambda given: _with_item(list.__setitem__, given),
    "operator": lambda given: _with_item(operator.setitem, given),
}


def _with_slice(given):
    row = [0, 1, 2]
    row[1:2] = given
    return row


def _with_item(put, given):
    row = [0] * 20
    put(row, given[0], 1)
    return row


CALLS = [[2, 3], [3, 2], [2, 2], [5, 9], [2, 3, 4], [9, 2], [2, 3]]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("made", MAY_CREATE)
def test_objects_are_created_from_the_arguments_of_each_call(made, kind):
    def program(x, given):
        return x + 1, MAY_CREATE[made](given)

    compiled = magpy.compile(program, backend="eager")
    for numbers in CALLS:
        x = torch.ones(2)
        assert_same(compiled(x, kind(numbers)), program(x, kind(numbers)))


@pytest.mark.parametrize("made", MAY_CREATE)
def test_objects_are_created_from_the_tensors_of_each_call(made):
    def program(x, given):
        return x + 1, MAY_CREATE[made]([number.item() for number in given])

    compiled = magpy.compile(program, backend="eager")
    for numbers in CALLS:
        x, given = torch.ones(2), [*map(torch.tensor, numbers[:2])]
        assert_same(compiled(x, given), program(x, given))

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
    "list": lambda argument: Row(argument)[0],
    "its length": lambda argument: len(Row(argument)),
    "tuple": lambda argument: Pair(argument)[1],
    "set": lambda argument: len(Members(argument)),
    "deque": lambda argument: Queue(argument)[-1],
    "dict": lambda argument: Table({1: 2, 3: argument[0]})[3],
    "keys": lambda argument: Table(zip(argument, "ab", strict=False)).get(2),
    "pairs": lambda argument: Table([(argument[0], 1), (2, 5)])[2],
    "integer": lambda argument: Whole(argument[0]) * 2,
    "its value": lambda argument: Whole(argument[0]) == 2,
    "fraction": lambda argument: Fraction(argument[1]) + 1,
    "text": lambda argument: len(Text(argument[0])),
    "user list": lambda argument: collections.UserList(argument)[0],
    "slice": lambda argument: _with_slice(argument)[1],
    "item": lambda argument: _with_item(list.__setitem__, argument),
    "operator": lambda argument: _with_item(operator.setitem, argument),
}


def _with_slice(argument):
    row = [0, 1, 2]
    row[1:2] = argument
    return row


def _with_item(assign, argument):
    row = [0] * 20
    assign(row, argument[0], 1)
    return row


CALLS = [[2, 3], [3, 2], [2, 2], [5, 9], [2, 3, 4], [9, 2], [2, 3]]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("name", MAY_CREATE)
def test_objects_are_created_from_the_arguments_of_each_call(name, kind):
    def program(x, argument):
        return x + 1, MAY_CREATE[name](argument)

    compiled = magpy.compile(program, backend="eager")
    for numbers in CALLS:
        x = torch.ones(2)
        assert_same(compiled(x, kind(numbers)), program(x, kind(numbers)))


@pytest.mark.parametrize("name", MAY_CREATE)
def test_objects_are_created_from_the_tensors_of_each_call(name):
    def program(x, argument):
        return x + 1, MAY_CREATE[name]([number.item() for number in argument])

    compiled = magpy.compile(program, backend="eager")
    for numbers in CALLS:
        x, argument = torch.ones(2), [*map(torch.tensor, numbers[:2])]
        assert_same(compiled(x, argument), program(x, argument))

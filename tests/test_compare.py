"""The comparison that all other tests rely on: it finds each kind of difference, and no others."""

import collections
import dataclasses
import functools
import types

import numpy as np
import pytest
import torch

from tests.compare import assert_same


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Plain(types.SimpleNamespace):
    pass


@dataclasses.dataclass
class Record:
    a: int
    b: list


Pair = collections.namedtuple("Pair", "a b")


def adder(n):
    return lambda x: x + n


def cyclic(value):
    items = [value]
    items.append(items)
    return items


def shared(value):
    return [value, value]


def advanced(iterator, steps):
    for _ in range(steps):
        next(iterator)
    return iterator


def counting(start):
    yield start
    yield start + 1


SAME = {
    "nan": lambda: (float("nan"), torch.tensor([float("nan")]), np.array([np.nan])),
    "stride of size-1 dimension": lambda: torch.ones(1, 3),
    "named tuple": lambda: Pair(1, [2]),
    "dataclass": lambda: Record(1, [2.0]),
    "slots": lambda: Slotted([1]),
    "closure": lambda: adder(torch.ones(2)),
    "partial": lambda: functools.partial(max, 1, key=len),
    "bound method": lambda: Slotted(1).__init__,
    "builtin method": lambda: [1].append,
    "builtin function": lambda: len,
    "cycle": lambda: cyclic(1.0),
    "alias": lambda: shared([1]),
    "set": lambda: {1, 2},
    "iterator": lambda: advanced(iter([1, 2, 3]), 1),
    "generator": lambda: advanced(counting(1), 1),
    "deque": lambda: collections.deque([1], maxlen=3),
    "exception": lambda: ValueError("x", 1),
    "object array": lambda: np.array([1, "x"], dtype=object),
}
DIFFERENT = {
    "type": (lambda: [1], lambda: (1,)),
    "bool is not int": (lambda: True, lambda: 1),
    "subclass": (lambda: collections.OrderedDict(a=1), lambda: {"a": 1}),
    "key order": (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}),
    "length": (lambda: [1], lambda: [1, 2]),
    "value": (lambda: {"a": [1]}, lambda: {"a": [2]}),
    "set": (lambda: {1, 2}, lambda: {1, 3}),
    "float": (lambda: 1.0, lambda: 1.001),
    "attribute": (lambda: Plain(x=1), lambda: Plain(x=2)),
    "missing attribute": (lambda: Plain(x=1), lambda: Plain(x=1, y=1)),
    "slot": (lambda: Slotted(1), lambda: Slotted(2)),
    "dataclass": (lambda: Record(1, [2]), lambda: Record(1, [3])),
    "closure": (lambda: adder(1), lambda: adder(2)),
    "deque bound": (lambda: collections.deque([], 3), lambda: collections.deque([], 4)),
    "exception": (lambda: ValueError("x"), lambda: ValueError("y")),
    "iterator position": (lambda: iter([1, 2]), lambda: advanced(iter([1, 2]), 1)),
    "generator position": (lambda: counting(1), lambda: advanced(counting(1), 1)),
    "lost alias": (lambda: [[1], [1]], lambda: shared([1])),
    "new alias": (lambda: shared([1]), lambda: [[1], [1]]),
    "dtype": (lambda: torch.ones(2), lambda: torch.ones(2).double()),
    "shape": (lambda: torch.ones(2), lambda: torch.ones(2, 1)),
    "stride": (lambda: torch.ones(2, 3), lambda: torch.ones(3, 2).t()),
    "tensor value": (lambda: torch.ones(2), lambda: torch.ones(2) + 1e-3),
    "requires_grad": (lambda: torch.ones(2), lambda: torch.ones(2, requires_grad=True)),
    "parameter": (lambda: torch.ones(2), lambda: torch.nn.Parameter(torch.ones(2))),
    "builtin method": (lambda: [].append, lambda: [].pop),
    "bound object": (lambda: [1].append, lambda: [2].append),
    "lost view": (lambda: [torch.ones(2), torch.ones(2)], lambda: shared_memory(0)),
    "new view": (lambda: shared_memory(0), lambda: [torch.ones(2), torch.ones(2)]),
    "other part": (lambda: shared_memory(1), lambda: shared_memory(0)),
    "array dtype": (lambda: np.ones(2), lambda: np.ones(2, dtype=np.float32)),
    "array value": (lambda: np.ones(2), lambda: np.zeros(2)),
}


def shared_memory(offset):
    base = torch.ones(3)
    return [base[:2], base[offset : offset + 2]]


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_equal_object_graphs_compare_equal(make):
    assert_same(make(), make())


@pytest.mark.parametrize("actual,expected", DIFFERENT.values(), ids=DIFFERENT)
def test_differences_are_found(actual, expected):
    with pytest.raises(AssertionError):
        assert_same(actual(), expected())


def test_message_names_the_access_path():
    with pytest.raises(AssertionError, match=r"out\['a'\]\[1\].x: 1, expected 2"):
        assert_same({"a": [0, Plain(x=1)]}, {"a": [0, Plain(x=2)]}, what="out")


def test_aliasing_between_results_and_arguments_is_compared():
    x, y = torch.ones(2), torch.ones(2)
    assert_same((x.view(2), x), (y.view(2), y))
    with pytest.raises(AssertionError, match="shares no memory"):
        assert_same((x.view(2).clone(), x), (y.view(2), y))

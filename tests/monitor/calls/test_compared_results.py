"""Native code that compares what functions return to it: keys of an order, and sentinels."""

import bisect
import collections
import dataclasses
import functools
import heapq
import itertools

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

Pair = collections.namedtuple("Pair", "number index")


@dataclasses.dataclass(order=True)
class Ordered:
    number: float
    index: int


class Smaller:
    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        return self.number < other.number


def sort_in_place(x, numbers):
    rows = [x[0], x[1]]
    rows.sort(key=lambda row: -row)
    return rows


def insort(x, numbers):
    found = [1]
    bisect.insort(found, 0, key=lambda i: (numbers[i],))
    return found


def by_closure_list(x, numbers):
    keys = [[number] for number in numbers]
    return sorted(range(2), key=lambda i: keys[i])


ORDERS = {
    "tensor of rows": lambda x, n: sorted(x, key=lambda row: -row),
    "tensor": lambda x, n: sorted(range(2), key=lambda i: x[i]),
    "list with a tensor": lambda x, n: sorted(range(2), key=lambda i: [x[i], i]),
    "item in a tuple": lambda x, n: sorted(range(2), key=lambda i: (x[i].item(), i)),
    "tuple": lambda x, n: sorted(range(2), key=lambda i: (n[i], i)),
    "nested tuple": lambda x, n: sorted(range(2), key=lambda i: ((0, [n[i]]), i)),
    "named tuple": lambda x, n: sorted(range(2), key=lambda i: Pair(n[i], i)),
    "dataclass": lambda x, n: sorted(range(2), key=lambda i: Ordered(n[i], i)),
    "object": lambda x, n: sorted(range(2), key=lambda i: (Smaller(n[i]),)),
    "text": lambda x, n: sorted(range(2), key=lambda i: (f"{n[i]:08.3f}",)),
    "numpy": lambda x, n: sorted(range(2), key=lambda i: (np.float32(n[i]), i)),
    "comparison": lambda x, n: sorted(range(2), key=functools.cmp_to_key(lambda a, b: n[a] - n[b])),
    "comparison of tensors": lambda x, n: sorted(
        range(2), key=functools.cmp_to_key(lambda a, b: x[a] - x[b])
    ),
    "partial": lambda x, n: sorted(range(2), key=functools.partial(lambda n, i: (n[i], i), n)),
    "list": by_closure_list,
    "sort": sort_in_place,
    "min": lambda x, n: min(range(2), key=lambda i: (n[i], i)),
    "max of tensors": lambda x, n: max(range(2), key=lambda i: x[i]),
    "nlargest": lambda x, n: heapq.nlargest(1, range(2), key=lambda i: (n[i], i)),
    "nsmallest": lambda x, n: heapq.nsmallest(2, range(2), key=lambda i: (n[i], i)),
    "merge": lambda x, n: list(heapq.merge([0], [1], key=lambda i: (n[i], i))),
    "bisect": lambda x, n: bisect.bisect([0, 1], (1.5,), key=lambda i: (n[i],)),
    "insort": insort,
    "groupby": lambda x, n: [
        (key, list(group)) for key, group in itertools.groupby(range(2), key=lambda i: (n[i],))
    ],
    "groupby in a list": lambda x, n: len(list(itertools.groupby(range(2), lambda i: (n[i],)))),
    "groupby of tensors": lambda x, n: len(list(itertools.groupby(range(2), lambda i: x[i]))),
    "list of tuples": lambda x, n: [i for _, i in sorted((n[i], i) for i in range(2))],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("reads_tensor", [False, True])
def test_keys_decide_an_order_in_every_call(order, reads_tensor):
    def program(x, numbers):
        return order(x, x.tolist() if reads_tensor else numbers)

    fast = magpy.compile(program, backend="eager")
    for numbers in ([1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [3.0, 3.0], [5.0, 4.0]):
        x = torch.tensor(numbers)
        assert_same(fast(x, numbers), program(x, numbers))


def test_containers_from_outside_are_keys():
    def program(x, keys):
        return sorted(range(2), key=lambda i: keys[i]), x + 1

    fast = magpy.compile(program, backend="eager")
    for keys in ([(1,), (2,)], [(2,), (1,)], [(1, 1), (1, 0)], [[[3]], [[2]]], [(1,), (2,)]):
        assert_same(fast(torch.ones(1), keys), program(torch.ones(1), keys))


def until_zero(numbers, x):
    return list(iter(iter(numbers).__next__, 0)), x + 1


def until_own_number(numbers, x):
    rest = iter(numbers)
    return [x + n for n in iter(lambda: next(rest), numbers[1])]


def until_empty(numbers, x):
    rest = list(numbers)
    return [n for n in iter(rest.pop, 0)], rest, x + 1


def until_tensor_is_zero(numbers, x):
    rest = iter([x * n for n in numbers])
    return list(iter(lambda: next(rest), 0))


def until_error(numbers, x):
    rest = iter([1, None, *numbers])
    found = iter(lambda: next(rest) + 1, 1)
    taken = [next(found)]
    try:
        next(found)
    except TypeError:
        taken.append("error")
    return taken, list(found), type(found).__name__, x + 1


@pytest.mark.parametrize(
    "program", [until_zero, until_own_number, until_empty, until_tensor_is_zero, until_error]
)
def test_a_sentinel_ends_an_iterator_in_every_call(program):
    fast = magpy.compile(program, backend="eager")
    for numbers in ((1, 2, 0), (0, 1, 2), (1, 0, 2), (2, 0, 0), (1, 2, 0), (0, 2, 1)):
        x = torch.ones(1)
        assert_same(fast(numbers, x), program(numbers, x))

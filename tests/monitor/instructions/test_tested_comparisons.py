"""Comparisons whose results are tested at once: Python 3.13 does both in one instruction."""

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins, tensor


class Answers:
    """A value whose comparison returns what a function computes."""

    def __init__(self, answer):
        self.answer = answer

    def __lt__(self, other):
        return self.answer(other)


class Truth:
    def __init__(self, value):
        self.value = value

    def __bool__(self):
        return self.value


class Sized:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


def chooses(x, left, right):
    if left < right:
        return x + 1
    return x - 1


def negates(x, left, right):
    lower = not left < right
    return x + lower, lower


def repeats(x, left, right):
    while x.sum() < right:
        x = x * 2
    return x


def breaks(x, left, right):
    for i in range(4):
        x = x + 1
        if left.sum() * i > right:
            break
    return x


def combines(x, left, right):
    return x + (1 if left < right and right or x.sum() > 2 else 5)


def answering(make):
    return lambda value: (tensor(1, 2), Answers(lambda other: make(other < value)), 3)


OPERANDS = {
    "tensors": lambda value: (tensor(1, 2), tensor(3), tensor(value)),
    "a tensor and a number": lambda value: (tensor(1, 2), tensor(3), value),
    "an array and a number": lambda value: (tensor(1, 2), np.array(3), value),
    "a comparison that returns a tensor": answering(torch.tensor),
    "a comparison that returns an array": answering(np.array),
    "a comparison that returns a list": answering(lambda is_less: [1] if is_less else []),
    "a comparison that returns an object with __bool__": answering(Truth),
    "a comparison that returns an object with __len__": answering(Sized),
    "a comparison that returns a bool": answering(bool),
}


@pytest.mark.parametrize("program", [chooses, negates, combines])
@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_truth_of_a_comparison_is_that_of_each_call(program, operands):
    twins = Twins(lambda: program)
    for value in (5, 5, 1, 1, 5, 1):
        twins.call(lambda value=value: operands(value), why=f"compared with {value}")


@pytest.mark.parametrize("program", [chooses, repeats, breaks])
@pytest.mark.parametrize("grad", [False, True])
def test_comparison_of_tensors_decides_within_one_record(program, grad):
    def operands(value):
        return tensor(1, 2, grad=grad), tensor(3), tensor(value)

    twins = Twins(lambda: program)
    twins.call(lambda: operands(5), hit=False, backward=grad)
    for value in (5, 1, 9, 40, 0):
        twins.call(lambda value=value: operands(value), hit=True, backward=grad)


@pytest.mark.parametrize("right", [torch.ones(3), torch.ones(2), "text", None])
def test_comparison_that_raises_does_so_in_each_call(right):
    twins = Twins(lambda: chooses)
    for _ in range(2):
        twins.call(lambda: (tensor(1, 2), torch.zeros(2), right))


def test_method_that_is_replaced_must_miss():
    class Value:
        def __lt__(self, other):
            return Truth(True)

    def program(x, value):
        return chooses(x, value, 1)

    twins = Twins(lambda: program)
    value = Value()
    for truth in (True, True, False, True):
        Value.__lt__ = lambda self, other, truth=truth: Truth(truth)
        twins.call(lambda: (tensor(1, 2), value), why=f"{truth}")


def test_container_that_a_comparison_returns_must_miss_once_it_is_empty():
    found = [1]
    value = Answers(lambda other: found)
    fast = magpy.compile(lambda x: chooses(x, value, 1), backend="eager")
    for items in ([1], [1], [], [], [2]):
        found[:] = items
        assert torch.equal(fast(tensor(1, 2)), chooses(tensor(1, 2), value, 1)), items
    assert magpy.cache_info(fast).hits >= 2

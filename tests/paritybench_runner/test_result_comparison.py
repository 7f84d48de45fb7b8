"""Comparison of the results of two runs of one program."""

import collections
import functools
import re

import numpy as np
import pytest
import torch
from torch import nn

from paritybench_runner.result_comparison import collect_tensors, find_difference


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def module(log):
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(1)
        layer.bias.fill_(0)
    layer.log = log
    return layer


def hooked(hook=print):
    layer = module([])
    layer.register_forward_hook(hook)
    return layer


def closure(value):
    return lambda: value


def deque(*items):
    return collections.deque(items, maxlen=3)


def partial(value):
    return functools.partial(max, value)


def advanced(items):
    iterator = iter(items)
    next(iterator)
    return iterator


def defaults(factory):
    return collections.defaultdict(factory)


def objects(value):
    return np.array([{"a": value}, None], dtype=object)


def grown():
    result = nn.Parameter(torch.zeros(1)) + 1
    result.__class__ = nn.Parameter
    return result


def inferred():
    with torch.inference_mode():
        return torch.zeros(2)


EQUAL = [
    lambda: torch.arange(3.0),
    lambda: torch.tensor([float("nan"), float("inf")]),
    lambda: {"a": [1, 2.5, None], "b": (torch.ones(2), "x")},
    lambda: deque(torch.ones(1)),
    lambda: module([1]),
    lambda: hooked(),
    lambda: Box(items={1, 2}, nested=Box(x=torch.zeros(2))),
    lambda: Slotted(torch.ones(2)),
    lambda: closure(torch.ones(2)),
    lambda: np.arange(3),
    lambda: torch.eye(3).to_sparse(),
    lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    lambda: torch.empty(2, device="meta"),
    lambda: Box().__init__,
    lambda: [torch.relu, torch.Tensor.sin, int, np, functools.partial(max, 1, key=abs)],
    lambda: [iter([1, 2]), enumerate([1]), re.compile("a"), bytearray(b"a"), ValueError("a", 1)],
    lambda: [1 + 2j, np.array([{"a": torch.ones(1)}], dtype=object), np.random.RandomState(0)],
    lambda: collections.defaultdict(list, a=[1]),
    lambda: [torch.ones(2, 1, 3).transpose(0, 1), torch.ones(0, 2).t()],
]


@pytest.mark.parametrize("make", EQUAL)
def test_equal_results_have_no_difference(make):
    assert find_difference(make(), make()) is None


DIFFERENT = {
    "value": (lambda: torch.zeros(2), lambda: torch.ones(2), "values differ by up to 1"),
    "integer values": (lambda: torch.tensor([1, 2]), lambda: torch.tensor([1, 3]), "1 of 2"),
    "nan": (lambda: torch.zeros(1), lambda: torch.full((1,), float("nan")), "values differ"),
    "dtype": (lambda: torch.zeros(2), lambda: torch.zeros(2).double(), "dtype"),
    "shape": (lambda: torch.zeros(2), lambda: torch.zeros(1, 2), "shape"),
    "requires_grad": (
        lambda: torch.zeros(2),
        lambda: torch.zeros(2, requires_grad=True),
        "requires_grad",
    ),
    "parameter": (
        lambda: nn.Parameter(torch.zeros(2)),
        lambda: torch.zeros(2, requires_grad=True),
        "Parameter",
    ),
    "list for tuple": (lambda: [1], lambda: (1,), "tuple instead of list"),
    "bool for int": (lambda: 1, lambda: True, "bool instead of int"),
    "length": (lambda: [1], lambda: [1, 2], "2 items instead of 1"),
    "nested value": (
        lambda: {"a": [1, 2]},
        lambda: {"a": [1, 3]},
        r"result['a'][1]: 3 instead of 2",
    ),
    "order of keys": (lambda: {"a": 1, "b": 1}, lambda: {"b": 1, "a": 1}, "key"),
    "set": (lambda: {1}, lambda: {2}, "{2} instead of {1}"),
    "attribute": (lambda: Box(x=1), lambda: Box(x=2), "result.x: 2 instead of 1"),
    "missing attribute": (lambda: Box(x=1), lambda: Box(), "result.x: missing"),
    "unexpected attribute": (lambda: Box(), lambda: Box(x=1), "result.x: unexpected"),
    "slot": (lambda: Slotted(1), lambda: Slotted(2), "result.value"),
    "module's list": (lambda: module([1]), lambda: module([1, 1]), "result.log"),
    "hook": (lambda: hooked(), lambda: hooked(str), "_forward_hooks"),
    "closure": (lambda: closure(1), lambda: closure(2), "<cell value>"),
    "array": (lambda: np.zeros(2), lambda: np.ones(2), "values differ"),
    "array's dtype": (lambda: np.zeros(2), lambda: np.zeros(2, "float32"), "float32"),
    "float": (lambda: 1.0, lambda: 1.1, "1.1 instead of 1.0"),
    "small float": (lambda: 1e-6, lambda: 2e-6, "2e-06 instead of 1e-06"),
    "small values": (lambda: torch.full((2,), 1e-6), lambda: torch.full((2,), 2e-6), "1e-06"),
    "small values of an array": (lambda: np.full(2, 1e-6), lambda: np.full(2, 2e-6), "values"),
    "complex number": (lambda: 1 + 1j, lambda: 1 + 2j, "(1+2j) instead of (1+1j)"),
    "class": (lambda: int, lambda: float, "float"),
    "Python module": (lambda: np, lambda: torch, "torch"),
    "built-in function": (lambda: torch.relu, lambda: torch.tanh, "tanh"),
    "method of a built-in class": (lambda: str.upper, lambda: str.lower, "lower"),
    "partial function": (lambda: partial(1), lambda: partial(2), "2 instead of 1"),
    "bytearray": (lambda: bytearray(b"a"), lambda: bytearray(b"b"), "instead of"),
    "position of an iterator": (lambda: iter([1, 2]), lambda: advanced([1, 2]), "1 instead of 0"),
    "exception": (lambda: ValueError(1), lambda: ValueError(2), "2 instead of 1"),
    "default factory": (lambda: defaults(list), lambda: defaults(set), "set"),
    "maximum length of a deque": (lambda: deque(1), lambda: collections.deque([1]), "instead"),
    "object in an array": (lambda: objects(1), lambda: objects(2), "2 instead of 1"),
    "NumPy generator": (
        lambda: np.random.RandomState(0),
        lambda: np.random.RandomState(1),
        "values differ",
    ),
    "strides": (lambda: torch.zeros(2, 3), lambda: torch.zeros(3, 2).t(), "strides (1, 2)"),
    "leaf": (lambda: nn.Parameter(torch.ones(1)), grown, "is_leaf False instead of True"),
    "inference": (lambda: torch.zeros(2), inferred, "is_inference"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_difference_is_found_and_named(name):
    expected, actual, words = DIFFERENT[name]
    assert words in find_difference(expected(), actual())


def one_list_twice():
    part = [1]
    return [part, part]


def two_lists():
    return [[1], [1]]


def views_of_one():
    base = torch.zeros(4)
    return base[:2], base[2:]


def two_tensors():
    return torch.zeros(2), torch.zeros(2)


@pytest.mark.parametrize(
    "shared, distinct", [(one_list_twice, two_lists), (views_of_one, two_tensors)]
)
def test_aliasing_is_part_of_the_result(shared, distinct):
    assert "shared" in find_difference(shared(), distinct())
    assert "shared" in find_difference(distinct(), shared())
    assert find_difference(shared(), shared()) is None


def test_argument_differs_from_its_copy():
    one, other = torch.ones(2), torch.ones(2)
    assert find_difference((one, one), (other, other)) is None
    assert "shared" in find_difference((one, one), (other.clone(), other))


def test_cycles_are_followed_once():
    def ring(value):
        items = [value]
        items.append(items)
        return items

    assert find_difference(ring(1), ring(1)) is None
    assert "2 instead of 1" in find_difference(ring(1), ring(2))


def test_gradients_of_leaves_are_compared():
    def trained(factor):
        weight = torch.ones(2, requires_grad=True)
        (weight * factor).sum().backward()
        return weight

    assert find_difference(trained(2), trained(2)) is None
    assert "result.grad" in find_difference(trained(2), trained(3))


def test_rounding_within_the_spread_is_no_difference():
    eager = torch.tensor([1e-7, 2.0])
    spread = torch.tensor([1e-3, 1e-4], dtype=torch.float64)
    within_spread = eager + torch.tensor([4e-3, 0.0])
    assert find_difference(eager, within_spread) is not None
    assert find_difference(eager, within_spread, spread=lambda path: [spread]) is None
    too_far = eager + torch.tensor([0.0, 0.1])
    assert find_difference(eager, too_far, spread=lambda path: [spread]) is not None
    assert find_difference(eager, within_spread, spread=lambda path: []) is not None


def test_numbers_within_the_spread_are_no_difference():
    spread = torch.tensor(1e-3, dtype=torch.float64)
    for number in (float, np.float64, np.asarray):
        assert find_difference(number(1.0), number(1.002)) is not None
        assert find_difference(number(1.0), number(1.002), spread=lambda path: [spread]) is None
        assert find_difference(number(1.0), number(1.1), spread=lambda path: [spread]) is not None


def test_tensors_are_listed_by_access_path():
    root = {"a": [torch.zeros(1)], "b": Box(x=torch.ones(1)), "c": 1.5}
    assert set(collect_tensors(root)) == {"result['a'][0]", "result['b'].x", "result['c']"}

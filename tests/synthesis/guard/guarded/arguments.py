"""Programs that rely on their arguments."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch
from torch import nn

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import (
    Box,
    Calls,
    Number,
    Other,
    minus,
    ones,
    plus,
    relies_on,
    varied_argument,
    varied_state,
)


@relies_on(Kind.POSITIONAL_ARGUMENTS, after_split=False)
def another_positional_argument() -> Calls:
    def program(x, *others):
        return x + len(others)

    return program, [lambda: (ones(),), lambda: (ones(),), lambda: (ones(), 1)]


@relies_on(Kind.KEYWORD_ARGUMENTS, after_split=False)
def different_keywords() -> Calls:
    def program(x, **others):
        return x * others.get("a", 3) + others.get("b", 4)

    return program, [
        lambda: ((ones(),), {"a": 1}),
        lambda: ((ones(),), {"a": 1}),
        lambda: ((ones(),), {"a": 1, "b": 1}),
        lambda: ((ones(),), {}),
    ]


@relies_on(Kind.KEYWORD_ORDER, after_split=False)
def order_of_keywords() -> Calls:
    def program(x, *, c=0, **others):
        return x * c, list(others)

    return program, [
        lambda: ((ones(),), {"a": 1, "c": 2, "b": 1}),
        lambda: ((ones(),), {"a": 1, "b": 1, "c": 2}),
        lambda: ((ones(),), {"b": 1, "c": 2, "a": 1}),
    ]


@relies_on(Kind.VALUE_EQUALITY, Kind.VALUE)
def number() -> Calls:
    return varied_argument(lambda x, n: x * n if n != 1 else x, lambda: 0, lambda: 1)


@relies_on(Kind.VALUE_TYPE, Kind.VALUE)
def type_of_a_number() -> Calls:
    return varied_argument(
        lambda x, n: x.int() * n if type(n) is int else x, lambda: 1, lambda: 1.0
    )


@relies_on(Kind.VALUE)
def string() -> Calls:
    return varied_argument(lambda x, s: x if s == "a" else -x, lambda: "a", lambda: "b")


@relies_on(Kind.VALUE_TEXT, Kind.VALUE)
def sign_of_zero() -> Calls:
    return varied_argument(lambda x, n: x / n, lambda: 0.0, lambda: -0.0)


@relies_on(Kind.SCALAR_VALUE)
def number_of_an_int_subclass() -> Calls:
    return varied_argument(
        lambda x, n: x + 1 if n == 2 else x, lambda: Number(2), lambda: Number(3), lambda: Number(2)
    )


@relies_on(Kind.TYPE)
def class_of_an_instance() -> Calls:
    return varied_argument(lambda x, box: box.twice(x), Box, Other)


@relies_on(Kind.TENSOR)
def number_of_dimensions() -> Calls:
    return (lambda x: x.sum() + x.dim()), [_ones2, _ones2, lambda: (ones(2, 2),)]


def _ones2() -> tuple[Any, ...]:
    return (ones(),)


@relies_on(Kind.LENGTH)
def length_of_a_list() -> Calls:
    return varied_argument(lambda x, items: x + len(items), lambda: [1, 2], lambda: [1, 2, 3])


@relies_on(Kind.DICT_LENGTH)
def length_of_a_dictionary() -> Calls:
    return varied_argument(lambda x, t: x + len(t), lambda: {"a": 1}, lambda: {"a": 1, "b": 1})


@relies_on(Kind.DICT_KEYS)
def keys_of_a_dictionary() -> Calls:
    return varied_argument(
        lambda x, table: x + sum(len(key) for key in table),
        lambda: {"a": 1},
        lambda: {"abc": 1},
        lambda: {"a": 1, "b": 1},
    )


@relies_on(Kind.SET_MEMBERS)
def members_of_a_set() -> Calls:
    return varied_argument(lambda x, s: x + sum(s), lambda: {1, 2}, lambda: {1, 2, 5})


@relies_on(Kind.SET_MEMBERS)
def members_of_a_set_subclass() -> Calls:
    class Members(set[Any]):
        pass

    return varied_argument(
        lambda x, s: x + sum(s), lambda: Members({1, 2}), lambda: Members({1, 5})
    )


@relies_on(Kind.NOT_EMPTY)
def emptiness_of_a_list() -> Calls:
    return varied_argument(lambda x, items: x if items else -x, lambda: [1], lambda: [])


@relies_on(Kind.ARRAY_CONTENTS)
def contents_of_an_array() -> Calls:
    return varied_argument(
        lambda x, a: x + torch.from_numpy(a),
        lambda: np.array([1.0, 2.0]),
        lambda: np.array([1.0, 3.0]),
    )


@relies_on(Kind.ARRAY_METADATA)
def shape_of_an_array() -> Calls:
    return varied_argument(lambda x, a: x + a.ndim, lambda: np.ones(2), lambda: np.ones((2, 2)))


@relies_on(Kind.DEFAULT_FACTORY)
def default_factory() -> Calls:
    def program(x, table):
        return x * table["b"]

    return varied_argument(
        program,
        lambda: collections.defaultdict(_two, a=1),
        lambda: collections.defaultdict(_three, a=1),
    )


def _two() -> int:
    return 2


def _three() -> int:
    return 3


@relies_on(Kind.FUNCTION_CODE)
def code_of_a_function() -> Calls:
    return varied_argument(lambda x, function: function(x), lambda: plus(1), lambda: minus(1))


@relies_on(Kind.VALUE)
def closure_of_a_function() -> Calls:
    return varied_argument(lambda x, function: function(x), lambda: plus(1), lambda: plus(2))


@relies_on(Kind.DEQUE_MAXLEN)
def maxlen_of_a_deque() -> Calls:
    def program(x, items):
        items.append(3)
        return x * len(items)

    return varied_argument(
        program,
        lambda: collections.deque([1, 2], maxlen=3),
        lambda: collections.deque([1, 2], maxlen=2),
    )


@relies_on(Kind.ABSENT_KEY)
def additional_key() -> Calls:
    return varied_argument(
        lambda x, t: x * t.get("b", 3), lambda: {"a": 1}, lambda: {"a": 1, "b": 1}
    )


@relies_on(Kind.MEMBER)
def absent_member() -> Calls:
    return varied_argument(lambda x, t: x * ("b" in t), lambda: {"b": 1}, lambda: {"a": 1})


@relies_on()
def absent_key_of_a_tensor() -> Calls:
    return varied_argument(
        lambda x, t: x * t["b"] if "b" in t else x, lambda: {"b": ones()}, lambda: {"a": 1}
    )


@relies_on()
def absent_key_of_a_list() -> Calls:
    def program(x, table):
        try:
            return x * len(table["b"])
        except KeyError:
            return x

    return varied_argument(program, lambda: {"b": [1]}, lambda: {})


@relies_on()
def absent_key_of_a_number() -> Calls:
    return varied_argument(lambda x, t: x * t.get("b", 3), lambda: {"b": 1}, lambda: {})


@relies_on(Kind.ABSENT_ATTRIBUTE)
def additional_attribute() -> Calls:
    return varied_argument(
        lambda x, box: x * getattr(box, "b", 3), lambda: Box(a=1), lambda: Box(b=1)
    )


@relies_on()
def absent_key_that_lookup_creates() -> Calls:
    """The lookup creates the key."""
    return varied_argument(
        lambda x, t: x * len(t.get("b", "abc")),
        lambda: collections.defaultdict(list, b=[1]),
        lambda: collections.defaultdict(list),
    )


@relies_on()
def absent_attribute_that_lookup_creates() -> Calls:
    def box(**attributes: Any) -> Box:
        made = Box()
        made.__dict__ = collections.defaultdict(list, attributes)
        return made

    return varied_argument(
        lambda x, box: x * len(getattr(box, "b", "abc")), lambda: box(b=[1]), lambda: box()
    )


@relies_on()
def absent_attribute() -> Calls:
    return varied_argument(
        lambda x, box: x * len(getattr(box, "b", "abc")), lambda: Box(b=[1]), lambda: Box(a=1)
    )


@relies_on()
def absent_item() -> Calls:
    def program(x, items):
        try:
            return x + len(items[1])
        except IndexError:
            return x

    return varied_argument(program, lambda: [[1], [2]], lambda: [[1]])


@relies_on()
def absent_number() -> Calls:
    def program(x, items):
        try:
            return x + items[1]
        except IndexError:
            return x

    return varied_argument(program, lambda: [1, 2], lambda: [1])


@relies_on(Kind.ALIAS, Kind.LENGTH)
def absent_alias() -> Calls:
    def both() -> Any:
        return [[1]] * 2

    def program(x, items):
        try:
            items[0].append(1)
            return x + len(items[1])
        except IndexError:
            return x

    return varied_argument(program, both, lambda: [[1]], lambda: [[1], [1]])


@relies_on(Kind.ALIAS)
def aliased_lists() -> Calls:
    def program(x, pair):
        pair[0].append(1)
        return x + len(pair[1])

    return varied_argument(program, lambda: ([1],) * 2, lambda: ([1], [1]))


@relies_on(Kind.DISTINCT)
def distinct_lists() -> Calls:
    def program(x, pair):
        pair[0].append(1)
        return x + len(pair[1])

    return varied_argument(program, lambda: ([1], [1]), lambda: ([1],) * 2)


@relies_on(Kind.DISTINCT_FROM_FIXED)
def list_distinct_from_a_fixed_one() -> Calls:
    fixed = [1]

    def program(x, items):
        return x + 1 if items is fixed else x

    return varied_argument(program, lambda: [1], lambda: fixed)


@relies_on(Kind.NOT_A_FIXED_OBJECT)
def changed_list_distinct_from_a_fixed_one() -> Calls:
    fixed = [1.0]

    def start() -> Any:
        fixed[:] = [1.0]
        return [1.0]

    def same() -> Any:
        fixed[:] = [1.0]
        return fixed

    def program(x, items):
        items.append(2.0)
        return x * len(fixed)

    return varied_argument(program, start, same)


@relies_on(Kind.DISTINCT_COMPARED)
def distinct_keys() -> Calls:
    class Key:
        pass

    key = Key()

    def program(x, a, b):
        return x * len({a, b})

    return program, [
        lambda: (ones(), Key(), Key()),
        lambda: (ones(), Key(), Key()),
        lambda: (ones(), key, key),
    ]


@relies_on(Kind.FIXED_ARGUMENT)
def module_argument() -> Calls:
    layers = [nn.ReLU(), nn.Tanh()]
    return varied_argument(lambda x, layer: layer(x - 2), lambda: layers[0], lambda: layers[1])


@relies_on(Kind.FIXED_IN_FETCHED)
def module_of_an_instance() -> Calls:
    layers = [nn.ReLU(), nn.Tanh()]
    return varied_argument(
        lambda x, box: box.layer(x - 2), lambda: Box(layer=layers[0]), lambda: Box(layer=layers[1])
    )


@relies_on(Kind.ABSENT_ELSEWHERE, Kind.VALUE)
def iterator_with_a_number_left() -> Calls:
    def program(x, it):
        for first in it:
            return x * first
        return x

    return varied_argument(program, lambda: iter([2.0, 3.0]), lambda: iter([]), lambda: iter([4.0]))


@relies_on()
def iterator_with_a_list_left() -> Calls:
    def program(x, it):
        for first in it:
            return x * len(first)
        return x

    return varied_argument(program, lambda: iter([[2.0], 3.0]), lambda: iter([]))


@relies_on(Kind.NOT_EXHAUSTED)
def iterator_with_an_object_left() -> Calls:
    def program(x, it):
        for _ in it:
            x = x * 2
            break
        return x

    return varied_argument(program, lambda: iter([object(), object()]), lambda: iter([]))


@relies_on(Kind.ABSENT_ELSEWHERE)
def exhausted_iterator() -> Calls:
    def program(x, it):
        for number in it:
            x = x * number
        return x

    return varied_argument(program, lambda: iter([2.0]), lambda: iter([2.0, 3.0]))


@relies_on(Kind.SEPARATE_ITERATORS)
def distinct_iterators() -> Calls:
    def apart() -> Any:
        return iter([1.0, 2.0, 3.0]), iter([1.0, 2.0, 3.0])

    def shared() -> Any:
        first = iter([1.0, 2.0, 3.0])
        return first, first

    def program(x, pair):
        first, second = pair
        for value in first:
            x = x * 2 + value
            if value > 1:
                break
        for value in second:
            x = x * 3 + value
        return x

    return varied_argument(program, apart, shared)


class Hidden:
    """An instance that shows other attributes than it has."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def __dict__(self) -> dict[str, Any]:
        return {"value": 7, "other": 3}


class OverriddenLookup(dict[str, Any]):
    """A dictionary with overridden lookup methods, which attribute access does not call."""

    def __getitem__(self, key: str) -> Any:
        return 7

    def __contains__(self, key: object) -> bool:
        return True

    def get(self, key: str, default: Any = None) -> Any:
        return 7


def _with_overridden_lookup(**attributes: Any) -> Box:
    box = Box()
    box.__dict__ = OverriddenLookup(attributes)
    return box


@relies_on(Kind.VALUE)
def attribute_hidden_by_its_class() -> Calls:
    return varied_argument(lambda x, box: x * box.value, lambda: Hidden(2), lambda: Hidden(3))


@relies_on(Kind.ABSENT_ATTRIBUTE)
def attribute_hidden_by_its_dictionary() -> Calls:
    return varied_argument(
        lambda x, box: x * getattr(box, "other", 5),
        lambda: _with_overridden_lookup(value=2),
        lambda: _with_overridden_lookup(other=3),
    )


@relies_on(Kind.FIXED_VALUE)
def fixed_attribute_hidden_by_its_class() -> Calls:
    box = Hidden(1)
    return varied_state(lambda x: x * box.value, lambda i: setattr(box, "value", i))

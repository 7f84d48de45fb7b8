"""Programs that rely on what a call brings."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch
from torch import nn

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import (
    Box,
    Made,
    Number,
    Other,
    altered,
    given,
    minus,
    ones,
    plus,
    relies_on,
)


@relies_on(Kind.POSITIONAL_ARGUMENTS, behind=False)
def more_arguments() -> Made:
    def program(x, *others):
        return x + len(others)

    return program, [lambda: (ones(),), lambda: (ones(),), lambda: (ones(), 1)]


@relies_on(Kind.KEYWORD_ARGUMENTS, behind=False)
def other_keywords() -> Made:
    def program(x, **others):
        return x * others.get("a", 3) + others.get("b", 4)

    return program, [
        lambda: ((ones(),), {"a": 1}),
        lambda: ((ones(),), {"a": 1}),
        lambda: ((ones(),), {"a": 1, "b": 1}),
        lambda: ((ones(),), {}),
    ]


@relies_on(Kind.VALUE_EQUALITY, Kind.VALUE)
def another_number() -> Made:
    return given(lambda x, n: x * n if n != 1 else x, lambda: 0, lambda: 1)


@relies_on(Kind.VALUE_TYPE, Kind.VALUE)
def another_type() -> Made:
    return given(lambda x, n: x.int() * n if type(n) is int else x, lambda: 1, lambda: 1.0)


@relies_on(Kind.VALUE)
def another_string() -> Made:
    return given(lambda x, s: x if s == "a" else -x, lambda: "a", lambda: "b")


@relies_on(Kind.VALUE_TEXT, Kind.VALUE)
def another_sign_of_zero() -> Made:
    return given(lambda x, n: x / n, lambda: 0.0, lambda: -0.0)


@relies_on(Kind.SCALAR_VALUE)
def another_number_of_a_class() -> Made:
    return given(
        lambda x, n: x + 1 if n == 2 else x, lambda: Number(2), lambda: Number(3), lambda: Number(2)
    )


@relies_on(Kind.TYPE)
def another_instance() -> Made:
    return given(lambda x, box: box.twice(x), Box, Other)


@relies_on(Kind.TENSOR)
def another_shape() -> Made:
    return (lambda x: x.sum() + x.dim()), [_ones2, _ones2, lambda: (ones(2, 2),)]


def _ones2() -> tuple[Any, ...]:
    return (ones(),)


@relies_on(Kind.LENGTH)
def another_length() -> Made:
    return given(lambda x, items: x + len(items), lambda: [1, 2], lambda: [1, 2, 3])


@relies_on(Kind.DICT_LENGTH)
def another_length_of_a_dictionary() -> Made:
    return given(lambda x, t: x + len(t), lambda: {"a": 1}, lambda: {"a": 1, "b": 1})


@relies_on(Kind.DICT_KEYS)
def other_keys() -> Made:
    return given(
        lambda x, table: x + sum(len(key) for key in table),
        lambda: {"a": 1},
        lambda: {"abc": 1},
        lambda: {"a": 1, "b": 1},
    )


@relies_on(Kind.SET_MEMBERS)
def other_members() -> Made:
    return given(lambda x, s: x + sum(s), lambda: {1, 2}, lambda: {1, 2, 5})


@relies_on(Kind.SET_MEMBERS)
def other_members_of_a_class() -> Made:
    class Members(set[Any]):
        pass

    return given(lambda x, s: x + sum(s), lambda: Members({1, 2}), lambda: Members({1, 5}))


@relies_on(Kind.NOT_EMPTY)
def nothing_in_it() -> Made:
    return given(lambda x, items: x if items else -x, lambda: [1], lambda: [])


@relies_on(Kind.ARRAY_CONTENTS)
def another_array() -> Made:
    return given(
        lambda x, a: x + torch.from_numpy(a),
        lambda: np.array([1.0, 2.0]),
        lambda: np.array([1.0, 3.0]),
    )


@relies_on(Kind.ARRAY_METADATA)
def an_array_of_another_shape() -> Made:
    return given(lambda x, a: x + a.ndim, lambda: np.ones(2), lambda: np.ones((2, 2)))


@relies_on(Kind.DEFAULT_FACTORY)
def another_default_factory() -> Made:
    def program(x, table):
        return x * table["b"]

    return given(
        program,
        lambda: collections.defaultdict(_two, a=1),
        lambda: collections.defaultdict(_three, a=1),
    )


def _two() -> int:
    return 2


def _three() -> int:
    return 3


@relies_on(Kind.FUNCTION_CODE)
def other_code() -> Made:
    return given(lambda x, function: function(x), lambda: plus(1), lambda: minus(1))


@relies_on(Kind.VALUE)
def another_closure() -> Made:
    return given(lambda x, function: function(x), lambda: plus(1), lambda: plus(2))


@relies_on(Kind.DEQUE_MAXLEN)
def another_bound() -> Made:
    def program(x, items):
        items.append(3)
        return x * len(items)

    return given(
        program,
        lambda: collections.deque([1, 2], maxlen=3),
        lambda: collections.deque([1, 2], maxlen=2),
    )


@relies_on(Kind.ABSENT_KEY)
def a_key_more() -> Made:
    return given(lambda x, t: x * t.get("b", 3), lambda: {"a": 1}, lambda: {"a": 1, "b": 1})


@relies_on(Kind.MEMBER)
def a_member_less() -> Made:
    return given(lambda x, t: x * ("b" in t), lambda: {"b": 1}, lambda: {"a": 1})


@relies_on()
def a_key_less() -> Made:
    return given(
        lambda x, t: x * t["b"] if "b" in t else x, lambda: {"b": ones()}, lambda: {"a": 1}
    )


@relies_on()
def a_key_to_a_list_less() -> Made:
    def program(x, table):
        try:
            return x * len(table["b"])
        except KeyError:
            return x

    return given(program, lambda: {"b": [1]}, lambda: {})


@relies_on()
def a_key_to_a_number_less() -> Made:
    return given(lambda x, t: x * t.get("b", 3), lambda: {"b": 1}, lambda: {})


@relies_on(Kind.ABSENT_ATTRIBUTE)
def an_attribute_more() -> Made:
    return given(lambda x, box: x * getattr(box, "b", 3), lambda: Box(a=1), lambda: Box(b=1))


@relies_on()
def a_key_less_that_is_made() -> Made:
    """To look it up makes it."""
    return given(
        lambda x, t: x * len(t.get("b", "abc")),
        lambda: collections.defaultdict(list, b=[1]),
        lambda: collections.defaultdict(list),
    )


@relies_on()
def an_attribute_less_that_is_made() -> Made:
    def box(**attributes: Any) -> Box:
        made = Box()
        made.__dict__ = collections.defaultdict(list, attributes)
        return made

    return given(
        lambda x, box: x * len(getattr(box, "b", "abc")), lambda: box(b=[1]), lambda: box()
    )


@relies_on()
def an_attribute_less() -> Made:
    return given(
        lambda x, box: x * len(getattr(box, "b", "abc")), lambda: Box(b=[1]), lambda: Box(a=1)
    )


@relies_on()
def an_item_less() -> Made:
    def program(x, items):
        try:
            return x + len(items[1])
        except IndexError:
            return x

    return given(program, lambda: [[1], [2]], lambda: [[1]])


@relies_on()
def a_number_less() -> Made:
    def program(x, items):
        try:
            return x + items[1]
        except IndexError:
            return x

    return given(program, lambda: [1, 2], lambda: [1])


@relies_on(Kind.ALIAS, Kind.LENGTH)
def an_alias_less() -> Made:
    def both() -> Any:
        return [[1]] * 2

    def program(x, items):
        try:
            items[0].append(1)
            return x + len(items[1])
        except IndexError:
            return x

    return given(program, both, lambda: [[1]], lambda: [[1], [1]])


@relies_on(Kind.ALIAS)
def not_the_same_list() -> Made:
    def program(x, pair):
        pair[0].append(1)
        return x + len(pair[1])

    return given(program, lambda: ([1],) * 2, lambda: ([1], [1]))


@relies_on(Kind.DISTINCT)
def the_same_list() -> Made:
    def program(x, pair):
        pair[0].append(1)
        return x + len(pair[1])

    return given(program, lambda: ([1], [1]), lambda: ([1],) * 2)


@relies_on(Kind.DISTINCT_FROM_FIXED)
def the_list_that_it_knows() -> Made:
    known = [1]

    def program(x, items):
        return x + 1 if items is known else x

    return given(program, lambda: [1], lambda: known)


@relies_on(Kind.NOT_A_FIXED_OBJECT)
def the_list_that_it_changes() -> Made:
    known = [1.0]

    def start() -> Any:
        known[:] = [1.0]
        return [1.0]

    def same() -> Any:
        known[:] = [1.0]
        return known

    def program(x, items):
        items.append(2.0)
        return x * len(known)

    return given(program, start, same)


@relies_on(Kind.DISTINCT_COMPARED)
def as_many_keys() -> Made:
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
def another_module() -> Made:
    layers = [nn.ReLU(), nn.Tanh()]
    return given(lambda x, layer: layer(x - 2), lambda: layers[0], lambda: layers[1])


@relies_on(Kind.FIXED_IN_FETCHED)
def another_module_of_an_instance() -> Made:
    layers = [nn.ReLU(), nn.Tanh()]
    return given(
        lambda x, box: box.layer(x - 2), lambda: Box(layer=layers[0]), lambda: Box(layer=layers[1])
    )


@relies_on(Kind.ABSENT_ELSEWHERE, Kind.VALUE)
def something_left() -> Made:
    def program(x, it):
        for first in it:
            return x * first
        return x

    return given(program, lambda: iter([2.0, 3.0]), lambda: iter([]), lambda: iter([4.0]))


@relies_on()
def a_list_left() -> Made:
    def program(x, it):
        for first in it:
            return x * len(first)
        return x

    return given(program, lambda: iter([[2.0], 3.0]), lambda: iter([]))


@relies_on(Kind.NOT_EXHAUSTED)
def an_object_left() -> Made:
    def program(x, it):
        for _ in it:
            x = x * 2
            break
        return x

    return given(program, lambda: iter([object(), object()]), lambda: iter([]))


@relies_on(Kind.ABSENT_ELSEWHERE)
def nothing_left() -> Made:
    def program(x, it):
        for number in it:
            x = x * number
        return x

    return given(program, lambda: iter([2.0]), lambda: iter([2.0, 3.0]))


@relies_on(Kind.SEPARATE_ITERATORS)
def iterators_with_the_same_elements() -> Made:
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

    return given(program, apart, shared)


class Hidden:
    """An instance that shows other attributes than it has."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def __dict__(self) -> dict[str, Any]:
        return {"value": 7, "other": 3}


class Answering(dict[str, Any]):
    """A dictionary that answers in Python, which an attribute access does not ask."""

    def __getitem__(self, key: str) -> Any:
        return 7

    def __contains__(self, key: object) -> bool:
        return True

    def get(self, key: str, default: Any = None) -> Any:
        return 7


def _answering(**attributes: Any) -> Box:
    box = Box()
    box.__dict__ = Answering(attributes)
    return box


@relies_on(Kind.VALUE)
def an_attribute_that_its_class_hides() -> Made:
    return given(lambda x, box: x * box.value, lambda: Hidden(2), lambda: Hidden(3))


@relies_on(Kind.ABSENT_ATTRIBUTE)
def an_attribute_that_its_dictionary_hides() -> Made:
    return given(
        lambda x, box: x * getattr(box, "other", 5),
        lambda: _answering(value=2),
        lambda: _answering(other=3),
    )


@relies_on(Kind.FIXED_VALUE)
def a_known_attribute_that_its_class_hides() -> Made:
    box = Hidden(1)
    return altered(lambda x: x * box.value, lambda i: setattr(box, "value", i))

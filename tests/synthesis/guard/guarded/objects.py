"""Programs that rely on what they know otherwise."""

from __future__ import annotations

import collections
import contextvars
import functools
from typing import Any

import numpy as np
import torch
from torch import nn

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import (
    Box,
    Made,
    altered,
    given,
    minus,
    ones,
    plus,
    relies_on,
)


@relies_on(Kind.FIXED_LENGTH)
def a_list_of_what_is_known() -> Made:
    items = [1, 2]

    def change(i):
        items[:] = [1, 2, 3][: 2 + i]

    return altered(lambda x: x * len(items), change)


@relies_on(Kind.FIXED_VALUE, Kind.STORED_ENTRY)
def an_element_of_what_is_known() -> Made:
    items = [1, 2]

    def change(i):
        items[0] = i

    return altered(lambda x: x if items[0] else -x, change)


@relies_on(Kind.FIXED_KEYS)
def keys_of_what_is_known() -> Made:
    table = {"a": 1, "bc": 1}

    def change(i):
        if i:
            table["a"] = table.pop("a")

    return altered(lambda x: x * len(next(iter(table))), change)


@relies_on(Kind.ABSENT_IN_FIXED, Kind.STORED_ENTRY)
def a_key_more_in_what_is_known() -> Made:
    table = {"a": 1}
    return altered(lambda x: x * ("b" in table), lambda i: table.update(b=1) if i else None)


@relies_on(Kind.ABSENT_IDENTITY_KEY_IN_FIXED, Kind.STORED_ENTRY)
def a_parameter_more_in_what_is_known() -> Made:
    weight, table = torch.nn.Parameter(ones()), dict[Any, int]()
    return altered(
        lambda x: x * (weight in table) + weight, lambda i: table.update({weight: 1}) if i else None
    )


@relies_on(Kind.ABSENT_IDENTITY_KEY)
def an_argument_that_is_a_key() -> Made:
    return given(
        lambda x, pair: x * (pair[0] in pair[1]),
        lambda: (ones(), {}),
        lambda: (t := ones(), {t: 1}),
    )


@relies_on(Kind.FIXED_MEMBER, Kind.STORED_ENTRY)
def a_key_less_in_what_is_known() -> Made:
    table = {"a": 1, "b": 1}
    return altered(lambda x: x * ("b" in table), lambda i: table.pop("b") if i else None)


@relies_on(Kind.FIXED_LENGTH)
def the_length_of_a_known_dictionary() -> Made:
    table = {"a": 1}
    return altered(lambda x: x * len(table), lambda i: table.update(b=1) if i else None)


@relies_on(Kind.FIXED_ORDERED_KEYS)
def the_order_of_a_known_dictionary() -> Made:
    table = collections.OrderedDict(a=1, b=2)
    return altered(
        lambda x: x if next(iter(table)) == "a" else -x, lambda i: table.move_to_end("ba"[i])
    )


@relies_on(Kind.FIXED_DEFAULT_FACTORY)
def the_factory_of_a_known_dictionary() -> Made:
    factories = (lambda: 2), (lambda: 3)
    table = collections.defaultdict(factories[0])

    def change(i):
        table.clear()
        table.default_factory = factories[i]

    return altered(lambda x: x * table["a"], change)


@relies_on(Kind.FIXED_SET_MEMBERS)
def members_of_what_is_known() -> Made:
    members = {1, 2}
    return altered(lambda x: x * sum(members), lambda i: members.add(9) if i else None)


@relies_on(Kind.FIXED_OTHER_LENGTH)
def the_length_of_a_known_queue() -> Made:
    items = collections.deque([1])
    return altered(lambda x: x * len(items), lambda i: items.append(1) if i else None)


@relies_on(Kind.FIXED_NOT_EMPTY)
def nothing_in_what_is_known() -> Made:
    items = [1]

    def change(i):
        items[:] = [1] * (1 - i)

    return altered(lambda x: x if items else -x, change)


@relies_on(Kind.FIXED_ARRAY_CONTENTS)
def what_a_known_array_holds() -> Made:
    array = np.array([1.0, 2.0])

    def change(i):
        array[0] = i + 1

    return altered(lambda x: x + torch.from_numpy(array.copy()), change)


@relies_on(Kind.FIXED_ARRAY_METADATA)
def the_shape_of_a_known_array() -> Made:
    array = np.ones((2, 2))

    def change(i):
        array.shape = ((2, 2), (4,))[i]

    return altered(lambda x: x * array.ndim, change)


@relies_on(Kind.FIXED_VALUE, Kind.STORED_CELL)
def a_cell() -> Made:
    function = plus(1)

    def change(i):
        function.__closure__[0].cell_contents = i

    return altered(lambda x: function(x), change)


@relies_on(Kind.FIXED_FUNCTION_CODE)
def known_code() -> Made:
    function = plus(1)

    def change(i):
        function.__code__ = (plus(1), minus(1))[i].__code__

    return altered(lambda x: function(x), change)


@relies_on(Kind.FIXED_VALUE, Kind.STORED_DEFAULTS)
def a_default() -> Made:
    function = plus(1)

    def change(i):
        if i:
            function.__defaults__ = (1,)

    return altered(lambda x: function(x), change)


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_KEYWORD_DEFAULT,
)
def a_default_of_a_keyword() -> Made:
    function = plus(1)

    def change(i):
        function.__kwdefaults__["k"] = i

    return altered(lambda x: function(x), change)


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_KEYWORD_DEFAULTS,
)
def defaults_of_keywords() -> Made:
    function = plus(1)

    def change(i):
        if i:
            function.__kwdefaults__ = {"k": 1}

    return altered(lambda x: function(x), change)


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_DEFAULTS,
    behind=False,
)
def no_defaults() -> Made:
    function = plus(1)

    def change(i):
        function.__defaults__ = ((0,), None)[i]

    def program(x):
        try:
            return function(x)
        except TypeError:
            return x

    return altered(program, change)


@relies_on(Kind.FIXED_IN_FIXED, Kind.STORED_FUNCTION_SLOT)
def defaults_themselves() -> Made:
    function = plus(1)

    def change(i):
        function.__defaults__ = ((0,), (0, 1))[i]

    return altered(lambda x: x * len(function.__defaults__), change)


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.STORED_ENTRY,
)
def a_parameter_replaced() -> Made:
    layer = nn.Linear(2, 2, bias=False)
    weights = [nn.Parameter(torch.full((2, 2), float(i))) for i in range(2)]
    return altered(lambda x: layer(x), lambda i: setattr(layer, "weight", weights[i]))


@relies_on(Kind.FIXED_TENSOR)
def a_parameter_without_gradients() -> Made:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data.fill_(1)
    return altered(
        lambda x: layer(x) if layer.weight.requires_grad else x,
        lambda i: layer.requires_grad_(i == 0),
    )


@relies_on(Kind.FIXED_TENSOR_AS_FOUND)
def a_parameter_that_is_changed() -> Made:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data.fill_(1)

    def program(x):
        before = layer.weight.requires_grad
        layer.weight.requires_grad_(False)
        return layer(x) * (1 if before else 2)

    return altered(program, lambda i: layer.weight.requires_grad_(i == 0))


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.STORED_ATTRIBUTE,
)
def a_layer_replaced() -> Made:
    box = Box()
    layers = [nn.ReLU(), nn.Tanh()]
    return altered(lambda x: box.layer(x - 2), lambda i: setattr(box, "layer", layers[i]))


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.STORED_ENTRY,
)
def a_layer_of_a_layer() -> Made:
    model = nn.Sequential(nn.ReLU())
    layers = [nn.ReLU(), nn.Tanh()]
    return altered(lambda x: model(x - 2), lambda i: model.__setitem__(0, layers[i]))


@relies_on()
def an_attribute_less_of_what_is_known_that_is_made() -> Made:
    box = Box()

    def change(i):
        box.__dict__ = collections.defaultdict(ones)
        if not i:
            box.tensor = ones() + 1

    return altered(lambda x: x * getattr(box, "tensor", 5), change)


@relies_on()
def a_key_less_of_what_is_known_that_is_made() -> Made:
    table = collections.defaultdict(ones)

    def change(i):
        table.clear()
        if not i:
            table["b"] = ones() + 1

    return altered(lambda x: x * table.get("b", 5), change)


@relies_on(Kind.TENSOR)
def a_tensor_of_what_is_known() -> Made:
    box = Box()
    tensors = [torch.ones(2), torch.ones(2).long()]
    return altered(
        lambda x: x if box.tensor.is_floating_point() else x + 1,
        lambda i: setattr(box, "tensor", tensors[i]),
    )


@relies_on(Kind.ALIAS)
def an_alias_in_what_is_known() -> Made:
    box = Box()
    tensors = [torch.ones(2), torch.full((2,), 3.0)]

    def program(x, t):
        return x * box.tensor + t

    def arguments(i):
        box.tensor = tensors[i]
        return ones(), tensors[0]

    return program, [functools.partial(arguments, i) for i in (0, 0, 1)]


@relies_on()
def no_alias_in_what_is_known() -> Made:
    box = Box()
    tensor = torch.ones(2)

    def program(x, t):
        return x * getattr(box, "tensor", 5) + t

    def arguments(i):
        box.__dict__.clear()
        if not i:
            box.tensor = tensor
        return ones(), tensor

    return program, [functools.partial(arguments, i) for i in (0, 0, 1)]


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_ELSEWHERE,
)
def a_context_variable() -> Made:
    variable = contextvars.ContextVar("variable", default=1)
    return altered(lambda x: x * variable.get(), lambda i: variable.set(i))


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_ELSEWHERE,
)
def a_slot() -> Made:
    class Slots:
        __slots__ = ("value",)

    slots = Slots()
    return altered(lambda x: x * slots.value, lambda i: setattr(slots, "value", i))


@relies_on(Kind.ABSENT_ELSEWHERE, Kind.VALUE)
def a_slot_of_another() -> Made:
    class Slots:
        __slots__ = ("value",)

    def holding(value: Any) -> Slots:
        slots = Slots()
        if value is not None:
            slots.value = value
        return slots

    return given(
        lambda x, slots: x * getattr(slots, "value", 5),
        lambda: holding(2),
        lambda: holding(3),
        lambda: holding(None),
        lambda: holding(4),
    )


@relies_on(Kind.ABSENT_ELSEWHERE)
def an_empty_slot() -> Made:
    class Slots:
        __slots__ = ("value",)

    def holding(value: Any) -> Slots:
        slots = Slots()
        if value is not None:
            slots.value = value
        return slots

    return given(
        lambda x, slots: x * getattr(slots, "value", 5), lambda: holding(None), lambda: holding(3)
    )

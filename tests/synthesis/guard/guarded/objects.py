"""Programs that rely on other fixed objects: containers, arrays, functions, tensors, modules."""

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
    Calls,
    minus,
    ones,
    plus,
    relies_on,
    varied_argument,
    varied_state,
)


@relies_on(Kind.FIXED_LENGTH)
def length_of_a_fixed_list() -> Calls:
    items = [1, 2]

    def change(i):
        items[:] = [1, 2, 3][: 2 + i]

    return varied_state(lambda x: x * len(items), change)


@relies_on(Kind.FIXED_VALUE, Kind.STORED_ENTRY)
def element_of_a_fixed_list() -> Calls:
    items = [1, 2]

    def change(i):
        items[0] = i

    return varied_state(lambda x: x if items[0] else -x, change)


@relies_on(Kind.FIXED_KEYS)
def keys_of_a_fixed_dictionary() -> Calls:
    table = {"a": 1, "bc": 1}

    def change(i):
        if i:
            table["a"] = table.pop("a")

    return varied_state(lambda x: x * len(next(iter(table))), change)


@relies_on(Kind.ABSENT_IN_FIXED, Kind.STORED_ENTRY)
def additional_key_of_a_fixed_dictionary() -> Calls:
    table = {"a": 1}
    return varied_state(lambda x: x * ("b" in table), lambda i: table.update(b=1) if i else None)


@relies_on(Kind.ABSENT_IDENTITY_KEY_IN_FIXED, Kind.STORED_ENTRY)
def additional_parameter_key_of_a_fixed_dictionary() -> Calls:
    weight, table = torch.nn.Parameter(ones()), dict[Any, int]()
    return varied_state(
        lambda x: x * (weight in table) + weight, lambda i: table.update({weight: 1}) if i else None
    )


@relies_on(Kind.ABSENT_IDENTITY_KEY)
def tensor_argument_as_a_key() -> Calls:
    return varied_argument(
        lambda x, pair: x * (pair[0] in pair[1]),
        lambda: (ones(), {}),
        lambda: (t := ones(), {t: 1}),
    )


@relies_on(Kind.FIXED_MEMBER, Kind.STORED_ENTRY)
def absent_key_of_a_fixed_dictionary() -> Calls:
    table = {"a": 1, "b": 1}
    return varied_state(lambda x: x * ("b" in table), lambda i: table.pop("b") if i else None)


@relies_on(Kind.FIXED_LENGTH)
def length_of_a_fixed_dictionary() -> Calls:
    table = {"a": 1}
    return varied_state(lambda x: x * len(table), lambda i: table.update(b=1) if i else None)


@relies_on(Kind.FIXED_ORDERED_KEYS)
def order_of_a_fixed_dictionary() -> Calls:
    table = collections.OrderedDict(a=1, b=2)
    return varied_state(
        lambda x: x if next(iter(table)) == "a" else -x, lambda i: table.move_to_end("ba"[i])
    )


@relies_on(Kind.FIXED_KEYS)
def type_of_a_key_of_a_fixed_dictionary() -> Calls:
    table = {1: 1}

    def change(i):
        table.clear()
        table[(1, True)[i]] = 1

    return varied_state(lambda x: x * len(str(next(iter(table)))), change)


@relies_on(Kind.FIXED_ORDERED_KEYS)
def sign_of_a_zero_among_the_keys_of_a_fixed_dictionary() -> Calls:
    table = {0.0: 1}

    def change(i):
        table.clear()
        table[(0.0, -0.0)[i]] = 1

    return varied_state(lambda x: x / next(iter(table)), change)


@relies_on(Kind.FIXED_DEFAULT_FACTORY)
def default_factory_of_a_fixed_dictionary() -> Calls:
    factories = (lambda: 2), (lambda: 3)
    table = collections.defaultdict(factories[0])

    def change(i):
        table.clear()
        table.default_factory = factories[i]

    return varied_state(lambda x: x * table["a"], change)


@relies_on(Kind.FIXED_SET_MEMBERS)
def members_of_a_fixed_set() -> Calls:
    members = {1, 2}
    return varied_state(lambda x: x * sum(members), lambda i: members.add(9) if i else None)


@relies_on(Kind.FIXED_OTHER_LENGTH)
def length_of_a_fixed_deque() -> Calls:
    items = collections.deque([1])
    return varied_state(lambda x: x * len(items), lambda i: items.append(1) if i else None)


@relies_on(Kind.FIXED_NOT_EMPTY)
def emptiness_of_a_fixed_list() -> Calls:
    items = [1]

    def change(i):
        items[:] = [1] * (1 - i)

    return varied_state(lambda x: x if items else -x, change)


@relies_on(Kind.FIXED_ARRAY_CONTENTS)
def contents_of_a_fixed_array() -> Calls:
    array = np.array([1.0, 2.0])

    def change(i):
        array[0] = i + 1

    return varied_state(lambda x: x + torch.from_numpy(array.copy()), change)


@relies_on(Kind.FIXED_ARRAY_METADATA)
def shape_of_a_fixed_array() -> Calls:
    array = np.ones((2, 2))

    def change(i):
        array.shape = ((2, 2), (4,))[i]

    return varied_state(lambda x: x * array.ndim, change)


@relies_on(Kind.FIXED_VALUE, Kind.STORED_CELL)
def closure_cell() -> Calls:
    function = plus(1)

    def change(i):
        function.__closure__[0].cell_contents = i

    return varied_state(lambda x: function(x), change)


@relies_on(Kind.FIXED_FUNCTION_CODE)
def code_of_a_fixed_function() -> Calls:
    function = plus(1)

    def change(i):
        function.__code__ = (plus(1), minus(1))[i].__code__

    return varied_state(lambda x: function(x), change)


@relies_on(Kind.FIXED_VALUE, Kind.STORED_DEFAULTS)
def positional_default() -> Calls:
    function = plus(1)

    def change(i):
        if i:
            function.__defaults__ = (1,)

    return varied_state(lambda x: function(x), change)


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_KEYWORD_DEFAULT,
)
def keyword_default() -> Calls:
    function = plus(1)

    def change(i):
        function.__kwdefaults__["k"] = i

    return varied_state(lambda x: function(x), change)


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_KEYWORD_DEFAULTS,
)
def replaced_keyword_defaults() -> Calls:
    function = plus(1)

    def change(i):
        if i:
            function.__kwdefaults__ = {"k": 1}

    return varied_state(lambda x: function(x), change)


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_DEFAULTS,
    after_split=False,
)
def absent_defaults() -> Calls:
    function = plus(1)

    def change(i):
        function.__defaults__ = ((0,), None)[i]

    def program(x):
        try:
            return function(x)
        except TypeError:
            return x

    return varied_state(program, change)


@relies_on(Kind.FIXED_IN_FIXED, Kind.STORED_FUNCTION_SLOT)
def tuple_of_defaults() -> Calls:
    function = plus(1)

    def change(i):
        function.__defaults__ = ((0,), (0, 1))[i]

    return varied_state(lambda x: x * len(function.__defaults__), change)


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.STORED_ENTRY,
)
def replaced_parameter() -> Calls:
    layer = nn.Linear(2, 2, bias=False)
    weights = [nn.Parameter(torch.full((2, 2), float(i))) for i in range(2)]
    return varied_state(lambda x: layer(x), lambda i: setattr(layer, "weight", weights[i]))


@relies_on(Kind.FIXED_TENSOR)
def parameter_without_gradients() -> Calls:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data.fill_(1)
    return varied_state(
        lambda x: layer(x) if layer.weight.requires_grad else x,
        lambda i: layer.requires_grad_(i == 0),
    )


@relies_on(Kind.FIXED_TENSOR_AS_FOUND)
def changed_parameter() -> Calls:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data.fill_(1)

    def program(x):
        before = layer.weight.requires_grad
        layer.weight.requires_grad_(False)
        return layer(x) * (1 if before else 2)

    return varied_state(program, lambda i: layer.weight.requires_grad_(i == 0))


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.STORED_ATTRIBUTE,
)
def replaced_layer() -> Calls:
    box = Box()
    layers = [nn.ReLU(), nn.Tanh()]
    return varied_state(lambda x: box.layer(x - 2), lambda i: setattr(box, "layer", layers[i]))


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.STORED_ENTRY,
)
def replaced_submodule() -> Calls:
    model = nn.Sequential(nn.ReLU())
    layers = [nn.ReLU(), nn.Tanh()]
    return varied_state(lambda x: model(x - 2), lambda i: model.__setitem__(0, layers[i]))


@relies_on()
def absent_attribute_of_a_fixed_object_that_lookup_creates() -> Calls:
    box = Box()

    def change(i):
        box.__dict__ = collections.defaultdict(ones)
        if not i:
            box.tensor = ones() + 1

    return varied_state(lambda x: x * getattr(box, "tensor", 5), change)


@relies_on()
def absent_key_of_a_fixed_dictionary_that_lookup_creates() -> Calls:
    table = collections.defaultdict(ones)

    def change(i):
        table.clear()
        if not i:
            table["b"] = ones() + 1

    return varied_state(lambda x: x * table.get("b", 5), change)


@relies_on(Kind.TENSOR)
def tensor_of_a_fixed_object() -> Calls:
    box = Box()
    tensors = [torch.ones(2), torch.ones(2).long()]
    return varied_state(
        lambda x: x if box.tensor.is_floating_point() else x + 1,
        lambda i: setattr(box, "tensor", tensors[i]),
    )


@relies_on(Kind.ALIAS)
def alias_in_a_fixed_object() -> Calls:
    box = Box()
    tensors = [torch.ones(2), torch.full((2,), 3.0)]

    def program(x, t):
        return x * box.tensor + t

    def arguments(i):
        box.tensor = tensors[i]
        return ones(), tensors[0]

    return program, [functools.partial(arguments, i) for i in (0, 0, 1)]


@relies_on()
def absent_alias_in_a_fixed_object() -> Calls:
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
def context_variable() -> Calls:
    variable = contextvars.ContextVar("variable", default=1)
    return varied_state(lambda x: x * variable.get(), lambda i: variable.set(i))


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_ELSEWHERE,
)
def slot() -> Calls:
    class Slots:
        __slots__ = ("value",)

    slots = Slots()
    return varied_state(lambda x: x * slots.value, lambda i: setattr(slots, "value", i))


@relies_on(Kind.ABSENT_ELSEWHERE, Kind.VALUE)
def slot_of_an_argument() -> Calls:
    class Slots:
        __slots__ = ("value",)

    def holding(value: Any) -> Slots:
        slots = Slots()
        if value is not None:
            slots.value = value
        return slots

    return varied_argument(
        lambda x, slots: x * getattr(slots, "value", 5),
        lambda: holding(2),
        lambda: holding(3),
        lambda: holding(None),
        lambda: holding(4),
    )


@relies_on(Kind.ABSENT_ELSEWHERE)
def empty_slot() -> Calls:
    class Slots:
        __slots__ = ("value",)

    def holding(value: Any) -> Slots:
        slots = Slots()
        if value is not None:
            slots.value = value
        return slots

    return varied_argument(
        lambda x, slots: x * getattr(slots, "value", 5), lambda: holding(None), lambda: holding(3)
    )

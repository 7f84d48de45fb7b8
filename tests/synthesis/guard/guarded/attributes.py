"""Programs that rely on attributes and classes of fixed objects."""

from __future__ import annotations

from typing import Any

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import Box, Calls, Other, ones, relies_on, varied_state


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_ATTRIBUTE,
)
def attribute() -> Calls:
    box = Box(value=1)
    return varied_state(lambda x: x * box.value, lambda i: setattr(box, "value", i + 2))


@relies_on(
    Kind.FIXED_VALUE,
    Kind.STORED_ATTRIBUTE,
)
def attribute_that_becomes_none() -> Calls:
    box = Box(value=1)
    return varied_state(
        lambda x: x if box.value is None else x + 1,
        lambda i: setattr(box, "value", (1, None)[i]),
    )


@relies_on(
    Kind.ABSENT_IN_FIXED,
    Kind.STORED_ATTRIBUTE,
)
def additional_attribute_of_a_fixed_object() -> Calls:
    box = Box()
    return varied_state(
        lambda x: x * getattr(box, "value", 7),
        lambda i: box.__dict__.update(value=i) if i else None,
    )


@relies_on()
def absent_attribute_of_a_fixed_object() -> Calls:
    box = Box()

    def change(i):
        box.__dict__.clear()
        if not i:
            box.value = ones()

    return varied_state(lambda x: x * getattr(box, "value", 7), change)


@relies_on(Kind.HOLDER, Kind.FIXED_VALUE, Kind.OWN_DICTIONARY)
def replaced_instance_dictionary() -> Calls:
    box = Box(value=1)

    def change(i):
        if i:
            box.__dict__ = {"value": 2}

    return varied_state(lambda x: x * box.value, change)


@relies_on(Kind.HOLDER, Kind.FIXED_VALUE, Kind.OWN_DICTIONARY)
def replaced_instance_dictionary_with_equal_values() -> Calls:
    box = Box()

    def change(i):
        if i:
            box.__dict__ = {"value": 1}
            box.value = 5
        else:
            box.value = 1

    return varied_state(lambda x: x * box.value, change)


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.HOLDER,
    Kind.OWN_DICTIONARY,
)
def replaced_instance_dictionary_with_another_list() -> Calls:
    box = Box(items=[1])

    def change(i):
        if i:
            box.__dict__ = {"items": [1, 2]}

    return varied_state(lambda x: x * len(box.items), change)


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.HOLDER,
    Kind.OWN_DICTIONARY_READ,
)
def vars_of_a_replaced_dictionary() -> Calls:
    box = Box(value=1)

    def change(i):
        if i:
            box.__dict__ = {"value": 1, "other": 1}

    return varied_state(lambda x: x * len(vars(box)), change)


@relies_on(Kind.FIXED_TYPE)
def class_of_a_fixed_object() -> Calls:
    box = Box()
    return varied_state(
        lambda x: box.twice(x), lambda i: setattr(box, "__class__", (Box, Other)[i])
    )


@relies_on(Kind.FIXED_VALUE, Kind.STORED_ENTRY)
def class_attribute() -> Calls:
    class Kind:
        value = 1

    return varied_state(lambda x: x * Kind.value, lambda i: setattr(Kind, "value", i))


@relies_on(
    Kind.STORED_MRO,
    Kind.FIXED_IN_FIXED,
)
def bases_of_a_class() -> Calls:
    class First:
        value = 1

    class Second:
        value = 2

    class Derived(First):
        pass

    return varied_state(
        lambda x: x * Derived.value,
        lambda i: setattr(Derived, "__bases__", (Second,)) if i else None,
    )


@relies_on(
    Kind.FIXED_IN_FIXED,
    Kind.STORED_TYPE_ATTRIBUTE,
)
def attribute_found_by_super() -> Calls:
    class First:
        def value(self):
            return 1

    class Derived(First):
        def value(self):
            return super().value() + 1

    box = Derived()

    def change(i):
        First.value = (_one_of, _two_of)[i]

    return varied_state(lambda x: x * box.value(), change)


def _one_of(self: Any) -> int:
    return 1


def _two_of(self: Any) -> int:
    return 2


@relies_on(Kind.FIXED_VALUE)
def type_of_a_fixed_number() -> Calls:
    box = Box()
    return varied_state(lambda x: x.int() * box.value, lambda i: setattr(box, "value", (1, 1.0)[i]))


@relies_on(Kind.FIXED_VALUE)
def sign_of_a_fixed_zero() -> Calls:
    box = Box()
    return varied_state(lambda x: x / box.value, lambda i: setattr(box, "value", (0.0, -0.0)[i]))


@relies_on(Kind.FIXED_IN_FIXED)
def identity_of_a_fixed_list() -> Calls:
    box = Box(items=[1])
    kept = box.items

    def change(i):
        kept[:] = [1]
        if i:
            box.items = [1]

    def program(x):
        box.items.append(2)
        return x * len(kept)

    return varied_state(program, change)

"""Dictionaries of instances that the program creates: the mock's instance has the same one."""

from __future__ import annotations

import copy

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


class Thing:
    def __init__(self, x, k=1):
        self.x, self.k = x, k


def returned_with_the_instance(x, thing):
    made = Thing(x, 3)
    return made, made.__dict__


def held_by_the_instance(x, thing):
    made = Thing(x)
    made.own = vars(made)
    return made


def of_a_function(x, thing):
    def made():
        return 1

    made.k = 3
    return made, made.__dict__


def of_a_tensor(x, thing):
    made = x + 1
    made.k = 2
    return made, vars(made)


def of_an_instance_that_is_gone(x, thing):
    made = vars(Thing(x))
    made["more"] = 1
    return made


def replaced(x, thing):
    made = Thing(x)
    before = made.__dict__
    made.__dict__ = {"new": 1}
    return made, before


def kept_outside(x, thing):
    made = Thing(x)
    thing.kept = made.__dict__
    return made


def copied_after_a_change(x, thing):
    thing.x = x
    return copy.copy(thing)


def updated_through_a_method(x, thing):
    made = Thing(x)
    update = made.__dict__.update
    print(end="")
    update(k=7)
    return made


PROGRAMS = (
    returned_with_the_instance, held_by_the_instance, of_a_function, of_a_tensor,
    of_an_instance_that_is_gone, replaced, kept_outside, copied_after_a_change,
    updated_through_a_method,
)  # fmt: skip


def _observed(program):
    thing = Thing(torch.zeros(2))
    result = program(torch.ones(2), thing)
    made, *rest = result if isinstance(result, tuple) else (result,)
    found = [*rest, getattr(made, "own", None), getattr(thing, "kept", None)]
    attributes = made if isinstance(made, dict) else made.__dict__
    return list(attributes), vars(thing).get("x"), [each is attributes for each in found], found


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_dictionary_of_a_new_instance_stays_its_own(program, backend):
    fast = magpy.compile(program, backend=backend)
    for _ in range(3):
        assert_same(_observed(fast), _observed(program))


def length_then_attribute(thing):
    length = len(vars(thing))
    thing.extra = 1
    return length


def attribute_then_length(thing):
    thing.extra = 1
    return len(vars(thing))


def copy_then_attribute(thing):
    copied = {**vars(thing)}
    thing.extra = len(copied)
    return copied


def keys_between_attributes(thing):
    thing.k = 5
    keys = list(thing.__dict__)
    thing.extra = 2
    return keys, bool(vars(thing))


def length_then_deletion(thing):
    length = len(vars(thing))
    del thing.k
    return length, len(vars(thing))


@pytest.mark.parametrize(
    "read",
    [
        length_then_attribute, attribute_then_length, copy_then_attribute, keys_between_attributes,
        length_then_deletion,
    ],
)  # fmt: skip
def test_size_of_a_dictionary_is_that_before_or_after_an_attribute_is_set(read):
    def program(thing, x):
        return read(thing), x + 1

    fast, kept = magpy.compile(program, backend="eager"), (Thing(1), Thing(1))
    for names in ((), (), ("a",), ("a", "extra"), ("extra",), ("a",)):
        things = Thing(1), Thing(1)
        for thing in things:
            vars(thing).update(dict.fromkeys(names, 0))
        for mine, other in (things, kept) if read is not length_then_deletion else (things,):
            assert_same(fast(mine, torch.ones(2)), program(other, torch.ones(2)))
            assert vars(mine) == vars(other)


def test_size_of_a_module_dictionary_is_that_of_the_call():
    class Counting(torch.nn.Module):
        def forward(self, x):
            size = len(self.__dict__)
            self.cache = x
            return size

    fast, eager = magpy.compile(Counting(), backend="eager"), Counting()
    for _ in range(3):
        assert fast(torch.ones(2)) == eager(torch.ones(2))

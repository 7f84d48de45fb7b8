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

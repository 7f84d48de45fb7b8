"""Loop-carried dictionaries, named tuples and instances that each iteration creates anew."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch

import magpy_like as magpy
from tests.control_flow.loops import loop_checks
from tests.control_flow.loops.loop_checks import has_loop


class Pair(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


@dataclass
class State:
    h: torch.Tensor
    c: torch.Tensor

    def next(self, y):
        return State(torch.tanh(self.h + y), self.c * 0.5 + self.h)


@dataclass(frozen=True)
class Frozen:
    h: torch.Tensor
    steps: int = 0


def dictionary(x):
    s = {"h": x[0] * 0, "c": x[0], "steps": 0, "name": "cell"}
    for t in range(x.shape[0]):
        s = {**s, "h": torch.tanh(s["h"] + x[t]), "c": s["c"] + s["h"], "steps": s["steps"] + 1}
    return s


def dictionary_comprehension(x):
    s = {"h": x[0] * 0, "c": x[0]}
    for t in range(x.shape[0]):
        s = {key: torch.tanh(value + x[t]) for key, value in s.items()}
    s["h"] = s["h"] + 1
    return s


def named_tuple(x):
    s = Pair(x[0] * 0, x[0])
    for y in x:
        s = Pair(torch.tanh(s.h + y), s.c * 0.5 + s.h)
    return s


def nested_containers(x):
    s = Pair({"h": (x[0] * 0, [x[0]])}, x[0])
    for y in x:
        h, (last,) = s.h["h"]
        s = Pair({"h": (torch.tanh(h + y), [h])}, last * 0.5)
    return s


def instance(x):
    s = State(x[0] * 0, x[0])
    for y in x:
        s = s.next(y)
    s.c = s.c + 1
    return s.h, s.c


def frozen_instance(x):
    s = Frozen(x[0] * 0)
    for y in x:
        s = Frozen(torch.tanh(s.h + y), s.steps + 2)
    return s.h, s.steps


def previous_state(x):
    s, before = {"h": x[0]}, {"h": x[0] * 2}
    for y in x:
        before, s = s, {"h": torch.tanh(s["h"] + y + before["h"])}
    return s, before


CARRIED = [
    dictionary, dictionary_comprehension, named_tuple, nested_containers, instance, frozen_instance,
    previous_state,
]  # fmt: skip


@pytest.mark.parametrize("program", CARRIED, ids=loop_checks.case_id)
def test_containers_created_by_each_iteration_are_carried(program):
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    loop_checks.check_calls(fast, program, (5, 7, 9, 12, 2, 1, 6), training=True)
    assert has_loop(fast, torch.randn(8, 3, requires_grad=True))


def test_instance_created_by_iterations_is_returned():
    def program(x):
        s = State(x[0] * 0, x[0])
        for y in x:
            s = s.next(y)
        return s

    fast = magpy.compile(program, backend="eager")
    for size in (5, 7, 9, 6):
        x = torch.randn(size, 3)
        found, expected = fast(x), program(x)
        assert type(found) is State and vars(found).keys() == vars(expected).keys()
        assert torch.equal(found.h, expected.h) and torch.equal(found.c, expected.c)
    assert has_loop(fast, x)


def _first_state(make):
    def program(x):
        s = first = make(x[0] * 0)
        for y in x:
            weight = 2.0 if s is first else 0.5
            s = make(torch.tanh(_tensor(s) + y) * weight)
        return _tensor(s)

    return program


def _tensor(s):
    return s.h if isinstance(s, Frozen) else s["h"] if isinstance(s, dict) else s[0]


MAKERS = [lambda h: [h], lambda h: (h,), lambda h: {"h": h}, Frozen]


@pytest.mark.parametrize("make", MAKERS, ids=["list", "tuple", "dictionary", "instance"])
def test_iteration_may_compare_with_the_first_state(make):
    loop_checks.check(_first_state(make), (5, 7, 9, 2), training=False)


def different_keys(x):
    s = {"h": x[0]}
    for t in range(x.shape[0]):
        s = {**s, t: s["h"] + x[t]}
    return s


def different_order(x):
    s = {"a": x[0] * 0, "b": x[0]}
    for t in range(x.shape[0]):
        s = {"b": s["a"] + x[t], "a": s["b"]} if len(x) > 3 else s
    return [*s], s


def changes_the_first_state(x):
    s = first = {"h": x[0]}
    for y in x:
        s["h"] = s["h"] + 1
        s = {"h": torch.tanh(s["h"] + y)}
    return s, first


def state_in_two_variables(x):
    s = same = {"h": x[0]}
    for y in x:
        same = s = {"h": torch.tanh(s["h"] + y)}
    return s, same, same is s


def additional_attribute(x):
    s = State(x[0], x[0])
    for t in range(x.shape[0]):
        s = s.next(x[t])
        s.extra = s.h * 2
    return s.h, s.extra


def replaced_fields(x):
    s = State(x[0], x[0])
    for y in x:
        s = replace(s, h=torch.tanh(s.h + y))
    return s.h, s.c


DIFFERENT = [
    different_keys, different_order, changes_the_first_state, state_in_two_variables,
    additional_attribute, replaced_fields,
]  # fmt: skip


@pytest.mark.parametrize("program", DIFFERENT, ids=loop_checks.case_id)
def test_states_whose_structure_differs_equal_eagers(program):
    loop_checks.check(program, (5, 7, 9, 2), training=True)


class Counted:
    ended = 0

    def __init__(self, h):
        self.h = h

    def __del__(self):
        Counted.ended += 1


def test_isolated_runs_create_no_instances_with_destructors():
    def program(x):
        s = Counted(x[0])
        for y in x:
            s = Counted(torch.tanh(s.h + y))
        return s.h

    fast = magpy.compile(program, backend="eager")
    for size in (5, 7, 9):
        x = torch.randn(size, 3)
        Counted.ended = 0
        found = fast(x)
        assert Counted.ended == size + 1
        assert torch.equal(found, program(x))

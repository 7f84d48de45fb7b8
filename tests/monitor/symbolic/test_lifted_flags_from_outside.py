"""Bools that vary between calls in attributes, containers and closures: as those that are given."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")

COND = torch.ops.higher_order.cond
FIRST = True
SAME = magpy.disable(lambda value: value)


def _added(x, first, second):
    if first:
        x = x + 1
    return x * 2 if second else x.sin()


def of_attributes(x, given):
    if given.first:
        x = x + 1
    return x * 2 if given.second else x.sin()


def of_a_dictionary(x, given):
    if vars(given)["first"]:
        x = x + 1
    return x * 2 if given.__dict__["second"] else x.sin()


def stored(x, given):
    first = given.first
    second = given.second
    if first:
        x = x + 1
    return x * 2 if second else x.sin()


def passed_on(x, given):
    return _added(x, given.first, second=given.second)


def counted(x, given):
    return x * (given.first + 2) + given.second * 3 + 1


def asked_again_inside(x, given):
    if given.first:
        x = x + 1 if given.first else x - 1
    elif given.second:
        x = x * 2 if given.first else x * 3
    return x.cos() if not given.second else x


def in_a_loop(x, given):
    for i in range(3):
        x = x + i if given.first else x * 0.5
    return x * given.second


ONE_RECORD = (of_attributes, of_a_dictionary, stored, passed_on, counted, asked_again_inside,
              in_a_loop)  # fmt: skip


def asked_natively_too(x, given):
    return x + 1 if given.first else x - 1, getattr(given, "first"), vars(given)  # noqa: B009


def read_natively_on_the_way(x, given):
    return _added(x, given.first, getattr(given, "first"))  # noqa: B009


def written(x, given):
    if given.first:
        given.first = False
        x = x + 1
    return (x * 2 if given.first else x), given.second


def turned(x, given):
    y = x + 1 if given.first else x - 1
    given.first = not given.first
    return y * 2 if given.first else y * 3


def stored_twice(x, given):
    flag = given.first
    for _ in range(3):
        if flag:
            x = x + 1
        flag = given.second
    return x


def stored_on_one_side(x, given):
    if x.sum() > 0:
        flag = given.first
    else:
        flag = True
    return x + 1 if flag else x - 1


def stored_on_one_side_of_a_flag(x, given):
    if given.second:
        flag = given.first
    else:
        flag = True
    return x + 1 if flag else x - 1


def put_elsewhere(x, given):
    kept = {"flag": given.first}
    return (x + 1 if kept["flag"] else x), kept, [given.second]


def behind_a_split(x, given):
    flag = given.first
    if flag:
        x = x + 1
    SAME(0)
    return x * 2 if flag else x * (3 if given.second else 4)


def of_other_objects(x, given):
    found = []
    for other in (given, SimpleNamespace(first=True), SimpleNamespace(first=False)):
        try:
            found.append(_added(x, other.first, 1 // (len(found) % 2)))
        except ZeroDivisionError:
            found.append(x)
    return found, given.second


def deleted(x, given):
    x = x + 1 if given.first else x
    del given.first
    return x, hasattr(given, "first")


def identity(x, given):
    return x + 1 if given.first is True else x - given.second * 1


GUARDED = (asked_natively_too, read_natively_on_the_way, written, turned, stored_twice,
           stored_on_one_side, stored_on_one_side_of_a_flag, put_elsewhere, behind_a_split,
           of_other_objects, deleted, identity)  # fmt: skip

PAIRS = [*itertools.product((True, False), repeat=2)]


def _compare(program, compiled, first, second):
    x = torch.randn(3, generator=torch.Generator().manual_seed(first + 2 * second))
    actual, expected = (SimpleNamespace(first=first, second=second) for _ in range(2))
    found, wanted = compiled(x.clone(), actual), program(x.clone(), expected)
    assert_same(found, wanted)
    assert repr(found) == repr(wanted)  # True is not 1
    assert actual == expected


@pytest.mark.parametrize("program", ONE_RECORD)
def test_one_record_serves_all_values(program):
    compiled = magpy.compile(program, backend="eager")
    for pair in PAIRS:
        _compare(program, compiled, *pair)
    learnt = magpy.cache_info(compiled).misses
    assert learnt <= 3
    for pair in PAIRS:
        _compare(program, compiled, *pair)
    assert magpy.cache_info(compiled).misses == learnt


@pytest.mark.parametrize("order", [PAIRS, PAIRS[::-1]])
@pytest.mark.parametrize("program", [*ONE_RECORD, *GUARDED])
def test_every_value_is_answered_as_in_eager(program, order):
    compiled = magpy.compile(program, backend="eager")
    for pair in [*order, *order, *order[::-1]]:
        _compare(program, compiled, *pair)


def test_anything_but_a_bool_misses():
    compiled = magpy.compile(of_attributes, backend="eager")
    for pair in PAIRS:
        _compare(of_attributes, compiled, *pair)
    before = magpy.cache_info(compiled).misses
    _compare(of_attributes, compiled, 1, True)
    assert magpy.cache_info(compiled).misses == before + 1


def _of_a_cell():
    flag = True

    def program(x):
        return x * 2 if flag else x.sin()

    def change(now):
        nonlocal flag
        flag = now

    return program, change


def _of_a_global():
    def program(x):
        return x * 2 if FIRST else x.sin()

    return program, lambda now: globals().update(FIRST=now)


def _of_a_list():
    given = [0, True]

    def program(x):
        return x * 2 if given[-1] else x.sin()

    return program, lambda now: given.__setitem__(1, now)


def _of_a_module():
    class Scaled(nn.Module):
        def forward(self, x):
            return x * 2 if self.doubled else x.sin()

    module = Scaled()
    return module, lambda now: setattr(module, "doubled", now)


def _of_a_slot():
    class Slotted:
        __slots__ = ("doubled",)

    slotted = Slotted()
    program = lambda x: x * 2 if slotted.doubled else x.sin()
    return program, lambda now: setattr(slotted, "doubled", now)


@pytest.mark.parametrize("place", [_of_a_cell, _of_a_global, _of_a_list, _of_a_module, _of_a_slot])
def test_flags_are_found_wherever_they_are(place):
    program, change = place()
    compiled = magpy.compile(program, backend="eager")
    for now in (True, False, False, True):
        change(now)
        assert_same(compiled(torch.ones(3)), program(torch.ones(3)))
    change(True)
    report = magpy.explain(compiled, torch.ones(3))
    assert any(node.target is COND for graph in report.graphs for node in graph.graph.nodes)


def test_modes_of_modules_have_a_graph_each():
    class Model(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x.sin()

    model = Model()
    compiled = magpy.compile(model, backend="eager")
    for training in (True, False, True, False):
        model.train(training)
        assert_same(compiled(torch.ones(3)), model(torch.ones(3)))
    report = magpy.explain(compiled, torch.ones(3))
    assert not any(node.target is COND for graph in report.graphs for node in graph.graph.nodes)
    assert magpy.cache_info(compiled).misses == 2

"""Varying bools in attributes, containers and closures: lifted like those in arguments."""

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


def _branches(x, first, second):
    if first:
        x = x + 1
    return x * 2 if second else x.sin()


def of_attributes(x, flags):
    if flags.first:
        x = x + 1
    return x * 2 if flags.second else x.sin()


def of_a_dictionary(x, flags):
    if vars(flags)["first"]:
        x = x + 1
    return x * 2 if flags.__dict__["second"] else x.sin()


def in_locals(x, flags):
    first = flags.first
    second = flags.second
    if first:
        x = x + 1
    return x * 2 if second else x.sin()


def passed_on(x, flags):
    return _branches(x, flags.first, second=flags.second)


def in_arithmetic(x, flags):
    return x * (flags.first + 2) + flags.second * 3 + 1


def nested_in_branches(x, flags):
    if flags.first:
        x = x + 1 if flags.first else x - 1
    elif flags.second:
        x = x * 2 if flags.first else x * 3
    return x.cos() if not flags.second else x


def in_a_loop(x, flags):
    for i in range(3):
        x = x + i if flags.first else x * 0.5
    return x * flags.second


ONE_RECORD = (of_attributes, of_a_dictionary, in_locals, passed_on, in_arithmetic,
              nested_in_branches, in_a_loop)  # fmt: skip


def also_read_natively(x, flags):
    return x + 1 if flags.first else x - 1, getattr(flags, "first"), vars(flags)  # noqa: B009


def passed_by_getattr(x, flags):
    return _branches(x, flags.first, getattr(flags, "first"))  # noqa: B009


def written(x, flags):
    if flags.first:
        flags.first = False
        x = x + 1
    return (x * 2 if flags.first else x), flags.second


def negated(x, flags):
    y = x + 1 if flags.first else x - 1
    flags.first = not flags.first
    return y * 2 if flags.first else y * 3


def rebound_in_a_loop(x, flags):
    flag = flags.first
    for _ in range(3):
        if flag:
            x = x + 1
        flag = flags.second
    return x


def stored_in_one_branch(x, flags):
    if x.sum() > 0:
        flag = flags.first
    else:
        flag = True
    return x + 1 if flag else x - 1


def stored_in_one_branch_on_a_flag(x, flags):
    if flags.second:
        flag = flags.first
    else:
        flag = True
    return x + 1 if flag else x - 1


def stored_in_containers(x, flags):
    kept = {"flag": flags.first}
    return (x + 1 if kept["flag"] else x), kept, [flags.second]


def after_a_split(x, flags):
    flag = flags.first
    if flag:
        x = x + 1
    SAME(0)
    return x * 2 if flag else x * (3 if flags.second else 4)


def of_other_objects(x, flags):
    found = []
    for other in (flags, SimpleNamespace(first=True), SimpleNamespace(first=False)):
        try:
            found.append(_branches(x, other.first, 1 // (len(found) % 2)))
        except ZeroDivisionError:
            found.append(x)
    return found, flags.second


def deleted(x, flags):
    x = x + 1 if flags.first else x
    del flags.first
    return x, hasattr(flags, "first")


def identity(x, flags):
    return x + 1 if flags.first is True else x - flags.second * 1


GUARDED = (also_read_natively, passed_by_getattr, written, negated, rebound_in_a_loop,
           stored_in_one_branch, stored_in_one_branch_on_a_flag, stored_in_containers,
           after_a_split, of_other_objects, deleted, identity)  # fmt: skip

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
    misses = magpy.cache_info(compiled).misses
    assert misses <= 3
    for pair in PAIRS:
        _compare(program, compiled, *pair)
    assert magpy.cache_info(compiled).misses == misses


@pytest.mark.parametrize("order", [PAIRS, PAIRS[::-1]])
@pytest.mark.parametrize("program", [*ONE_RECORD, *GUARDED])
def test_all_values_match_eager(program, order):
    compiled = magpy.compile(program, backend="eager")
    for pair in [*order, *order, *order[::-1]]:
        _compare(program, compiled, *pair)


def test_values_of_other_types_miss():
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

    def change(value):
        nonlocal flag
        flag = value

    return program, change


def _of_a_global():
    def program(x):
        return x * 2 if FIRST else x.sin()

    return program, lambda value: globals().update(FIRST=value)


def _of_a_list():
    flags = [0, True]

    def program(x):
        return x * 2 if flags[-1] else x.sin()

    return program, lambda value: flags.__setitem__(1, value)


def _of_a_module():
    class Scaled(nn.Module):
        def forward(self, x):
            return x * 2 if self.doubled else x.sin()

    module = Scaled()
    return module, lambda value: setattr(module, "doubled", value)


def _of_a_slot():
    class Slotted:
        __slots__ = ("doubled",)

    slotted = Slotted()
    program = lambda x: x * 2 if slotted.doubled else x.sin()
    return program, lambda value: setattr(slotted, "doubled", value)


@pytest.mark.parametrize("make", [_of_a_cell, _of_a_global, _of_a_list, _of_a_module, _of_a_slot])
def test_flags_are_lifted_in_every_location(make):
    program, change = make()
    compiled = magpy.compile(program, backend="eager")
    for value in (True, False, False, True):
        change(value)
        assert_same(compiled(torch.ones(3)), program(torch.ones(3)))
    change(True)
    report = magpy.explain(compiled, torch.ones(3))
    assert any(node.target is COND for graph in report.graphs for node in graph.graph.nodes)


def test_each_training_mode_has_a_graph():
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

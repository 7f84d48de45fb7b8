"""Changes by dynamic functions, and the necessity of every check after a split."""

import collections
import contextvars
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed

VARIABLE = contextvars.ContextVar("VARIABLE", default=1)


class Box:
    kind = 1

    def __init__(self):
        self.value = 1
        self.items = [1, 2]
        self.table = {"a": 1}
        self.members = {1, 2}
        self.array = np.array([1.0, 2.0])
        self.layer = nn.Linear(2, 2, bias=False)
        self.function = _plus(1)
        self.tensor = torch.ones(2)

    def twice(self, x):
        return x * 2


class Other(Box):
    kind = 2

    def twice(self, x):
        return x * 3


class Doubling(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def _plus(n):
    def plus(x, m=0, *, k=0):
        return x + n + m + k

    return plus


def _set_parameter(box, i):
    torch.manual_seed(i)
    box.layer.weight = nn.Parameter(torch.randn(2, 2))


def _hook(box, i):
    box.layer._forward_hooks.clear()
    if i:
        box.layer.register_forward_hook(lambda layer, args, output: output + 5)


def _attributes(name, *values):
    return lambda box, i: setattr(box, name, values[i % len(values)])


def _shadow(box, i):
    if i:
        box.tensor.sum = lambda: torch.tensor(-1.0)
    else:
        box.tensor = torch.ones(2)


CHANGES = {
    "the grad mode": (
        lambda box, i: torch.set_grad_enabled(i == 0),
        lambda box, x: box.layer(x).requires_grad,
    ),
    "the default type": (
        lambda box, i: torch.set_default_dtype((torch.float32, torch.float64)[i]),
        lambda box, x: (x + torch.ones(2), x.to(torch.get_default_dtype())),
    ),
    "a number": (_attributes("value", 1, 2), lambda box, x: x * box.value),
    "the type of a number": (
        _attributes("value", 1, 1.5),
        lambda box, x: x.long() * box.value if type(box.value) is int else x,
    ),
    "a number and None": (
        _attributes("value", 1, None),
        lambda box, x: x if box.value is None else x + box.value,
    ),
    "a deleted attribute": (
        lambda box, i: box.__dict__.pop("value", None) if i else setattr(box, "value", 1),
        lambda box, x: x * getattr(box, "value", 7),
    ),
    "an attribute over a method": (
        lambda box, i: box.__dict__.pop("twice", None) if i else setattr(box, "twice", _plus(5)),
        lambda box, x: box.twice(x),
    ),
    "a class": (
        lambda box, i: setattr(box, "__class__", (Box, Other)[i]),
        lambda box, x: box.twice(x) + box.kind,
    ),
    "an attribute of a class": (
        lambda box, i: setattr(Box, "kind", i),
        lambda box, x: x + box.kind,
    ),
    "the length of a list": (
        lambda box, i: box.items.__setitem__(slice(None), [1, 2, 3][: 2 + i]),
        lambda box, x: x * len(box.items),
    ),
    "the end of a list": (
        lambda box, i: box.items.__setitem__(slice(None), [1, 2, 3][: 2 + i]),
        lambda box, x: [x * item for item in box.items],
    ),
    "an element of a list": (
        lambda box, i: box.items.__setitem__(0, i),
        lambda box, x: x * (1 if box.items[0] else 2),
    ),
    "a list": (_attributes("items", [1], (1,)), lambda box, x: x + isinstance(box.items, list)),
    "a value of a dictionary": (
        lambda box, i: box.table.__setitem__("a", i),
        lambda box, x: x * (1 if box.table["a"] else 2),
    ),
    "a key of a dictionary": (
        lambda box, i: box.table.pop("b", None) if i else box.table.setdefault("b", 5),
        lambda box, x: (x * 2 if "b" in box.table else x, box.table.get("b", 4), list(box.table)),
    ),
    "the keys of a dictionary": (
        lambda box, i: setattr(box, "table", ({"a": 1}, {"a": 1, "bc": 1})[i]),
        lambda box, x: x + sum(len(key) for key in box.table),
    ),
    "members of a set": (
        lambda box, i: box.members.add(9) if i else box.members.discard(9),
        lambda box, x: x + sum(box.members),
    ),
    "an array": (
        lambda box, i: box.array.__setitem__(0, i),
        lambda box, x: x + torch.from_numpy(box.array),
    ),
    "the closure of a function": (
        lambda box, i: setattr(box.function.__closure__[0], "cell_contents", i),
        lambda box, x: box.function(x),
    ),
    "a default of a function": (
        lambda box, i: setattr(box.function, "__defaults__", (i,)),
        lambda box, x: box.function(x),
    ),
    "the code of a function": (
        lambda box, i: setattr(box.function, "__code__", (_plus(1), _minus(1))[i].__code__),
        lambda box, x: box.function(x),
    ),
    "a function": (
        lambda box, i: setattr(box, "function", (torch.sin, torch.cos)[i]),
        lambda box, x: box.function(x),
    ),
    "a layer": (
        lambda box, i: setattr(box, "layer", (nn.ReLU(), nn.Tanh())[i]),
        lambda box, x: box.layer(x - 2),
    ),
    "a layer's mode": (
        lambda box, i: box.layer.train(i == 0),
        lambda box, x: x + 1 if box.layer.training else x,
    ),
    "a parameter": (_set_parameter, lambda box, x: box.layer(x)),
    "a parameter's gradients": (
        lambda box, i: box.layer.requires_grad_(i == 0),
        lambda box, x: box.layer(x).requires_grad,
    ),
    "the values of a parameter": (
        lambda box, i: box.layer.weight.data.fill_(i),
        lambda box, x: box.layer(x),
    ),
    "a tensor's type": (
        _attributes("tensor", torch.ones(2), torch.ones(2).long()),
        lambda box, x: (box.tensor * 2, x if box.tensor.is_floating_point() else x + 1),
    ),
    "a tensor's sizes": (
        _attributes("tensor", torch.ones(2), torch.ones(2, 2)),
        lambda box, x: x * box.tensor.dim(),
    ),
    "a tensor's attribute": (_shadow, lambda box, x: x + box.tensor.sum()),
    "a layer's class": (
        lambda box, i: setattr(box.layer, "__class__", (nn.Linear, Doubling)[i]),
        lambda box, x: box.layer(x),
    ),
    "a layer's hooks": (_hook, lambda box, x: box.layer(x)),
    "a default of a keyword": (
        lambda box, i: box.function.__kwdefaults__.__setitem__("k", i),
        lambda box, x: box.function(x),
    ),
    "the precision of products": (
        lambda box, i: torch.set_float32_matmul_precision(("highest", "high")[i]),
        lambda box, x: x + (torch.get_float32_matmul_precision() == "high"),
    ),
    "the identity of an object": (
        lambda box, i: setattr(box, "tensor", (SQUARE, box.layer.weight)[i]),
        lambda box, x: x + 1 if box.tensor is box.layer.weight else x,
    ),
    "a context variable": (
        lambda box, i: VARIABLE.set(i),
        lambda box, x: x + VARIABLE.get(),
    ),
    "a global": (
        lambda box, i: globals().__setitem__("SCALE", (2.0, 3.0)[i]),
        lambda box, x: x + 1 if SCALE > 2 else x,
    ),
    "the code of a global function": (
        lambda box, i: setattr(HELPER, "__code__", (_plus(1), _minus(1))[i].__code__),
        lambda box, x: HELPER(x),
    ),
    "the order of an ordered dictionary": (
        lambda box, i: ORDERED.move_to_end("ab"[i]),
        lambda box, x: x + (list(ORDERED)[0] == "a"),
    ),
    "a module's function": (
        lambda box, i: setattr(MODULE, "function", (math.sin, math.cos)[i]),
        lambda box, x: x * MODULE.function(1.0),
    ),
}
"""The dynamic function's change of a box in states 0 and 1, and the code that runs after it."""
SCALE = 2.0
SQUARE = nn.Parameter(torch.ones(2, 2))
ONE = Box()
MODULE = types.ModuleType("place")


def _minus(n):
    def minus(x, m=0, *, k=0):
        return x - n + m + k

    return minus


HELPER = _plus(1)
ORDERED = collections.OrderedDict(a=1, b=2)

RETURNS = {
    "a number": ([2, 3], lambda result, x: x + 1 if result == 2 else x),
    "a number and None": ([2, None], lambda result, x: x if result is None else x * result),
    "numbers of two types": ([2, 2.0, True], lambda result, x: x + (type(result) is int)),
    "a list": ([[1, 2], [1, 2, 3], [4]], lambda result, x: [x * item for item in result]),
    "text": (["a", "b"], lambda result, x: x + 1 if result == "a" else x),
    "a dictionary": ([{"a": 1}, {"b": 1}], lambda result, x: x * result.get("a", 3)),
    "native functions": ([torch.sin, torch.cos], lambda result, x: result(x)),
    "Python functions": ([_plus(1), _plus(2), _minus(1)], lambda result, x: result(x)),
    "methods": ([Box().twice, Other().twice], lambda result, x: result(x)),
    "objects": ([Box(), Other()], lambda result, x: result.twice(x)),
    "tensors": ([torch.ones(2), torch.ones(2).half()], lambda result, x: x + result.element_size()),
    "tensors of other sizes": (
        [torch.ones(2), torch.ones(2, 2)],
        lambda result, x: x * result.ndim,
    ),
    "tensors of any size": (
        [torch.ones(4), torch.ones(5), torch.ones(1), torch.ones(6), torch.ones(0)],
        lambda result, x: x + 1 if result.shape[0] == 1 else x * result.sum(),
    ),
    "one or two": ([(1,), (1, 2)], lambda result, x: x * len(result)),
    "slices": ([slice(0, 1), slice(1, 2)], lambda result, x: x[result]),
    "types": ([torch.int32, torch.float64], lambda result, x: x.to(result)),
    "an object twice": (
        [([1],) * 2, ([1], [1])],
        lambda result, x: x + 1 if result[0] is result[1] else x,
    ),
    "objects that native code compares": (
        [(Box(), Box()), (ONE, ONE)],
        lambda result, x: x * len({result[0], result[1]}),
    ),
    "a tensor that may be a key": (
        [(SQUARE, {}), (SQUARE, {SQUARE: 1})],
        lambda result, x: x + 1 if result[0] in result[1] else x,
    ),
}
STATES = [0, 0, 1, 1, 0, 1]


def _run(make, compiled, states=STATES):
    """A program's results in each state; all variables on which it runs are new."""
    seed(0)
    state = [0]
    program = make(state)
    if compiled:
        program = magpy.compile(program, backend="eager")
    results = []
    for state[0] in states:
        results.append(program(torch.tensor([1.0, 2.0])))
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    return results


@pytest.mark.parametrize("name", CHANGES)
def test_change_by_a_dynamic_function_must_miss_after_it(name):
    change, then = CHANGES[name]

    def make(state):
        box = Box()
        for i in (1, 0):
            change(box, i)
        touch = magpy.disable(lambda: change(box, state[0]))

        def program(x):
            y = x + 1
            touch()
            return then(box, y)

        return program

    assert_same(_run(make, True), _run(make, False))


@pytest.mark.parametrize("name", RETURNS)
@pytest.mark.parametrize("backwards", [False, True])
def test_result_of_a_dynamic_function_is_guarded_after_it(name, backwards):
    values, then = RETURNS[name]
    values = values[::-1] if backwards else values

    def make(state):
        opaque = magpy.disable(lambda: values[state[0]])

        def program(x):
            y = x + 1
            return then(opaque(), y)

        return program

    states = [0, 0, *range(len(values)), *range(len(values))]
    assert_same(_run(make, True, states), _run(make, False, states))


def test_iterators_that_become_one_object_must_miss():
    def make(state):
        def two():
            first = iter([1.0, 2.0, 3.0])
            return (iter([1.0, 2.0, 3.0]), first) if state[0] else (first, first)

        opaque = magpy.disable(two)

        def program(x):
            y = x + 1
            first, second = opaque()
            for value in first:
                y = y * 2 + value
                if value > 1:
                    break
            for value in second:
                y = y * 3 + value
            return y

        return program

    for states in (STATES, [1, 1, 0, 0, 1]):
        assert_same(_run(make, True, states), _run(make, False, states))


def test_exhausted_iterators_must_miss():
    def make(state):
        opaque = magpy.disable(lambda: iter([] if state[0] else [object(), object()]))

        def program(x):
            y = x + 1
            for _ in opaque():
                return y * 2
            return y

        return program

    for states in (STATES, [1, 1, 0, 0, 1]):
        assert_same(_run(make, True, states), _run(make, False, states))


SWEPT = (
    "synthesis/guard/test_soundness.py",
    "records/test_miss_analysis.py",
    "monitor/symbolic/numbers/test_lifted_numbers.py",
    "monitor/test_speculation.py",
    "splitting/test_splits.py",
    "splitting/test_suspended_generators.py",
    "monitor/test_random_draws.py",
    "splitting/test_continuation_functions.py",
    "monitor/symbolic/test_lifted_flags.py",
    "monitor/symbolic/lists/test_list_lengths.py",
    "monitor/symbolic/test_dynamic_shapes.py",
    "splitting/test_active_frames.py",
)


@pytest.mark.full
def test_every_check_after_a_split_and_of_a_lifted_value_matters(tmp_path):
    tests = Path(__file__).parents[2]
    paths = [str(tests / name) for name in SWEPT]
    root = tests.parent
    found = subprocess.run(
        [sys.executable, "-m", "tests.soundness", *paths],
        cwd=root,
        env={**os.environ, "SOUNDNESS_JOURNAL": str(tmp_path / "journal")},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr

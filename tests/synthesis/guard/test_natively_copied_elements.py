"""Elements that native code copies from external variables into new objects are guarded."""

import array
import collections
import functools
import types

import numpy as np
import pytest

from tests.programs import Twins, one


def _external_state():
    def scaled(scale, x, shift=0.0):
        return x * scale + shift

    return types.SimpleNamespace(
        items=[3.0, 1.0, 2.0],
        table={"a": 1.0},
        numbers=array.array("d", [1.0, 2.0]),
        vector=np.arange(3.0),
        scaled=functools.partial(scaled, 2.0, shift=1.0),
    )


def _put(target, key, value):
    target[key] = value
    return target


def _alter(state):
    state.items[0] = 8.0
    state.items.append(9.0)
    state.table["b"] = 2.0
    state.numbers[0] = 5.0
    state.vector[1] = 7.0
    state.scaled.keywords["shift"] = 4.0


def _alter_again(state):
    state.items[0] = 11.0
    state.scaled.__setstate__((state.scaled.func, (5.0,), {"shift": 2.0}, None))
    del state.numbers[:]


class _Partial(functools.partial):
    """A native class's Python subclass, created like any other."""


_PROGRAMS = {
    "slice of a list": lambda s, x: _put([1, 2], slice(None), s.items),
    "part of a list": lambda s, x: _put([1, 2, 3], slice(1, 2), s.items),
    "keys of a dictionary": lambda s, x: _put([1], slice(None), s.table),
    "native numbers into a list": lambda s, x: _put([1], slice(None), s.numbers),
    "list of a class in Python": lambda s, x: collections.UserList(s.items).data,
    "array into an array": lambda s, x: _put(np.zeros(3), slice(None), s.vector).tolist(),
    "number into an array": lambda s, x: _put(np.zeros(3), 1, s.items[0]).tolist(),
    "list into an array": lambda s, x: _put(np.zeros(2), slice(None), s.items[:2]).tolist(),
    "comparison of native numbers": lambda s, x: s.numbers == array.array("d", [1.0, 2.0]),
    "truth of native numbers": lambda s, x: x + 1 if s.numbers else x,
    "partial of a partial": lambda s, x: functools.partial(s.scaled, shift=3.0)(x),
    "partial that is kept": lambda s, x: functools.partial(s.scaled, x)(),
    "partial of a class": lambda s, x: _Partial(s.scaled, x)(),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_change_of_natively_copied_elements_must_miss(name):
    def make():
        state = _external_state()

        def program(x):
            return _PROGRAMS[name](state, x)

        program.state = state
        return program

    twins = Twins(make)
    for change in (None, _alter, _alter_again):
        if change is not None:
            twins.change(lambda program, change=change: change(program.state))
        for i in range(2):
            twins.call(one(1.0, float(i)), why=f"after {change}, call {i}")

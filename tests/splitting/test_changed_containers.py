"""Results of a segment that refer to a container which the same segment has changed."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


@magpy.disable
def opaque(value):
    return value


@magpy.disable
def refuse(value):
    if value > 5:
        raise ValueError(f"{value} is too much")


def _all_refused(x):
    errors = []
    for i in range(3):
        try:
            refuse(x[0].item() * (i + 1))
        except ValueError as error:
            errors.append(error)
    return errors


def errors_one_by_one(x, store):
    return [str(error) for error in _all_refused(x)]


def errors_as_a_group(x, store):
    errors = _all_refused(x)
    try:
        if errors:
            raise ExceptionGroup("all", errors)
    except ExceptionGroup as group:
        return [str(error) for error in group.exceptions], group.args[1] is errors
    return x


def new_keys(x, store):
    store["b"] = x.sum()
    return [(key, opaque(1)) for key in store]


def new_values(x, store):
    for key, value in store.items():
        store[key] = value + x
        opaque(key)
    return dict(store)


def replaced_keys(x, store):
    store.pop("a")
    store["b"] = x
    return [(key, opaque(value)) for key, value in reversed(store.items())]


PROGRAMS = [errors_one_by_one, errors_as_a_group, new_keys, new_values, replaced_keys]


@pytest.mark.parametrize("program", PROGRAMS)
def test_iterators_and_groups_see_the_changed_container(program):
    compiled = magpy.compile(program, backend="eager")
    store = {}
    for value in (4.0, 1.0, 2.0, 9.0, 0.0, 3.0, 2.0, 2.0):
        found = []
        for run in (compiled, program):
            store.clear()
            store["a"] = 1.0
            found.append((run(torch.full((2,), value), store), dict(store)))
        assert_same(*found)
    assert magpy.cache_info(compiled).hits or "keys" in program.__name__

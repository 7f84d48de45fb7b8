"""Attributes and the entries of instance dictionaries: one location under two names."""

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same


class Box:
    pass


def set_as_an_entry(box, x):
    box.__dict__["y"] = x * 2
    return box.y + 1


def set_as_an_attribute(box, x):
    box.y = x * 2
    return box.__dict__["y"] + 1


def counted(box, x):
    vars(box)["k"] = 3
    box.k += 1
    return x * box.k


def updated_and_deleted(box, x):
    entries = box.__dict__
    box.z = x
    entries.update(z=x * 3)
    box.z = box.z + 1
    del entries["z"]
    return hasattr(box, "z"), x


def copied(box, x):
    box.q = x
    return dict(box.__dict__)["q"] * 2


def defaulted(box, x):
    box.__dict__.setdefault("r", x)
    box.__dict__.update(s=x)
    box.r = box.r + box.s
    return box.r, sorted(vars(box))


PROGRAMS = [set_as_an_entry, set_as_an_attribute, counted, updated_and_deleted, copied, defaulted]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_attributes_and_dictionary_entries_are_one_location(program):
    fast = magpy.compile(program, backend="eager")
    found, expected = Box(), Box()
    for i in range(4):
        x = torch.full((2,), float(i))
        assert_same(fast(found, x), program(expected, x))
        assert_same(found.__dict__, expected.__dict__)
    assert magpy.cache_info(fast).hits >= 2

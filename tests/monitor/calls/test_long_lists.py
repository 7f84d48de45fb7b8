"""Changes of long lists: recording one does not look at the elements that are already there."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.monitor.objects.inspections import Inspections
from magpy_like.monitor.operator_graph import constant_tensors
from magpy_like.monitor.symbolic import tensors_as_numbers
from magpy_like.monitor.symbolic.numbers import lifted_identities
from tests.compare import assert_same
from tests.programs import tensor

COUNT = 120


@pytest.fixture
def visits(monkeypatch):
    """The values that searches of arguments have visited."""
    found = []
    leaves, numbers = constant_tensors._leaves, lifted_identities.contents_of
    may_be_number = tensors_as_numbers._may_be_number
    compare = Inspections.record_comparison

    def note_leaves(value):
        for leaf in leaves(value):
            found.append(leaf)
            yield leaf

    def note(function):
        def noted(value):
            found.append(value)
            return function(value)

        return noted

    def note_comparison(inspections, value, *seen):
        found.append(value)
        return compare(inspections, value, *seen)

    monkeypatch.setattr(constant_tensors, "_leaves", note_leaves)
    monkeypatch.setattr(lifted_identities, "contents_of", note(numbers))
    monkeypatch.setattr(tensors_as_numbers, "_may_be_number", note(may_be_number))
    monkeypatch.setattr(Inspections, "record_comparison", note_comparison)
    return found


def append(rest, x):
    rest.append(x)


def extend(rest, x):
    rest.extend((x,))


def add_in_place(rest, x):
    rest += [x]


def insert(rest, x):
    rest.insert(0, x)


@pytest.mark.parametrize("change", [append, extend, add_in_place, insert])
@pytest.mark.parametrize("is_external", [False, True], ids=["new", "external"])
def test_change_of_a_list_visits_no_earlier_element(change, is_external, visits):
    def program(x, external):
        rest = external if is_external else []
        for _ in range(COUNT):
            x = x + 1
            change(rest, x)
        return x, list(rest)

    fast = magpy.compile(program, backend="eager")
    eager, compiled = [tensor(5)], [tensor(5)]
    assert_same(fast(tensor(1, 2), compiled), program(tensor(1, 2), eager))
    assert len(visits) < 20 * COUNT
    assert_same(compiled, eager)


def test_elements_of_a_list_that_grows_are_compared_and_folded():
    def program(x, numbers):
        rest = []
        for number in numbers:
            rest += [number]
        return x * sum(rest) + max(rest) if rest == numbers else x

    fast = magpy.compile(program, backend="eager")
    for numbers in ([1, 2, 3], [1, 2, 3], [2, 2, 3], [3, 1, 7], [1.5, 2, 3], [1, 2]):
        x = torch.ones(2)
        assert_same(fast(x, list(numbers)), program(x, list(numbers)))


def test_constants_in_a_list_are_read_and_other_tensors_are_not():
    def program(x):
        values = [torch.tensor(2.0), torch.tensor(3.0)]
        scale = values[0].item() * values[1].item()
        values.append(x.sum())
        return x * scale + values[2]

    fast = magpy.compile(program, backend="eager")
    for x in (tensor(1, 2), tensor(1, 2), tensor(3, 4)):
        assert_same(fast(x), program(x))

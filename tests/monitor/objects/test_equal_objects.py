"""Identity of equal values: equal numbers and texts may be one object or several."""

import operator
from types import SimpleNamespace

import pytest
import torch

import magpy_like as magpy
from tests.programs import tensor

MAKE = {
    "int": lambda: int("123456789"),
    "float": lambda: float("2.5"),
    "nan": lambda: float("nan"),
    "text": lambda: "".join(["he", "llo"]),
    "bytes": lambda: bytes([1, 2, 3]),
    "complex": lambda: complex("1+2j"),
    "range": lambda: range(int("12345")),
    "device": lambda: torch.device("cpu"),
}

COMPARISONS = {
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
    "operator.is_": operator.is_,
    "id": lambda a, b: id(a) == id(b),
}


def _check(program, calls):
    compiled = magpy.compile(program, backend="eager")
    for arguments in calls:
        assert compiled(tensor(1, 2), *arguments)[1] == program(tensor(1, 2), *arguments)[1]
    return compiled


def _one_object(make):
    return (value := make()), value


def _two_objects(make):
    return make(), make()


@pytest.mark.parametrize("make", MAKE.values(), ids=list(MAKE))
@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=list(COMPARISONS))
@pytest.mark.parametrize("first, then", [(_one_object, _two_objects), (_two_objects, _one_object)])
def test_identity_of_equal_arguments_is_guarded(make, compare, first, then):
    arguments = first(make)
    compiled = _check(lambda x, a, b: (x + 1, compare(a, b)), [arguments, arguments, then(make)])
    assert magpy.cache_info(compiled).hits == 1


def test_identity_of_equal_attributes_is_guarded():
    def calls():
        for many in (_one_object, _two_objects):
            a, b = many(MAKE["int"])
            yield SimpleNamespace(k=a), SimpleNamespace(k=b)

    _check(lambda x, a, b: (x + 1, a.k is b.k), calls())


def test_identity_of_a_global_and_an_argument_is_guarded():
    known = MAKE["text"]()
    _check(lambda x, a: (x + 1, a is known), [(known,), (MAKE["text"](),), (known,)])


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=list(COMPARISONS))
def test_identity_of_varying_numbers_is_guarded(compare):
    def calls():
        for text in ("1000", "2000", "3000"):
            yield _one_object(lambda text=text: int(text))
            yield _two_objects(lambda text=text: int(text))

    _check(lambda x, a, b: (x * a, compare(a, b)), calls())


def test_membership_of_nan_depends_on_identity():
    calls = [many(MAKE["nan"]) for many in (_one_object, _two_objects, _one_object)]
    _check(lambda x, a, b: (x + 1, a in [b]), calls)


def test_equal_small_integers_are_one_object():
    compiled = _check(lambda x, a, b: (x + 1, a is b), [(3, 3), (int("3"), 3), (3, int("3"))])
    assert magpy.cache_info(compiled).hits == 2

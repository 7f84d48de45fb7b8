"""Equal numbers and texts may be one object or several, which programs can tell."""

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

ASK = {
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
    "operator.is_": operator.is_,
    "id": lambda a, b: id(a) == id(b),
}


def _check(program, calls):
    compiled = magpy.compile(program, backend="eager")
    for given in calls:
        assert compiled(tensor(1, 2), *given)[1] == program(tensor(1, 2), *given)[1]
    return compiled


def _one(make):
    return (made := make()), made


def _two(make):
    return make(), make()


@pytest.mark.parametrize("make", MAKE.values(), ids=list(MAKE))
@pytest.mark.parametrize("ask", ASK.values(), ids=list(ASK))
@pytest.mark.parametrize("first, then", [(_one, _two), (_two, _one)])
def test_whether_equal_arguments_are_one_object(make, ask, first, then):
    given = first(make)
    compiled = _check(lambda x, a, b: (x + 1, ask(a, b)), [given, given, then(make)])
    assert magpy.cache_info(compiled).hits == 1


def test_whether_equal_attributes_are_one_object():
    def calls():
        for many in (_one, _two):
            a, b = many(MAKE["int"])
            yield SimpleNamespace(k=a), SimpleNamespace(k=b)

    _check(lambda x, a, b: (x + 1, a.k is b.k), calls())


def test_whether_a_global_and_an_argument_are_one_object():
    known = MAKE["text"]()
    _check(lambda x, a: (x + 1, a is known), [(known,), (MAKE["text"](),), (known,)])


@pytest.mark.parametrize("ask", ASK.values(), ids=list(ASK))
def test_whether_numbers_that_vary_are_one_object(ask):
    def calls():
        for text in ("1000", "2000", "3000"):
            yield _one(lambda text=text: int(text))
            yield _two(lambda text=text: int(text))

    _check(lambda x, a, b: (x * a, ask(a, b)), calls())


def test_nan_is_found_where_it_is_itself():
    calls = [many(MAKE["nan"]) for many in (_one, _two, _one)]
    _check(lambda x, a, b: (x + 1, a in [b]), calls)


def test_small_numbers_are_one_object_wherever_they_are_from():
    compiled = _check(lambda x, a, b: (x + 1, a is b), [(3, 3), (int("3"), 3), (3, int("3"))])
    assert magpy.cache_info(compiled).hits == 2

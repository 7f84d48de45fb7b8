"""Exceptions that native code shows: their arguments are guarded."""

import copy
import traceback

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor

pytestmark = pytest.mark.usefixtures("reset_magpy")


class Failure(Exception):
    pass


USES = {
    "text": str,
    "representation": repr,
    "field": lambda error: f"{error}",
    "percent": lambda error: "%s" % error,  # noqa: UP031
    "percent of several": lambda error: "%r %s" % (error, 1),  # noqa: UP031
    "format": lambda error: "{}".format(error),  # noqa: UP032
    "text of a list": lambda error: str([error]),
    "native method": BaseException.__str__,
    "raised": lambda error: _text_of_raised(error),
    "traceback": traceback.format_exception_only,
}

EXCEPTIONS = {
    "own class": Failure,
    "built-in class": ValueError,
    "key": KeyError,
    "several arguments": lambda number: Failure("of", number),
    "other number of arguments": lambda number: Failure(*range(number)),
    "contents of an argument": lambda number: Failure([number]),
    "state besides the arguments": lambda number: OSError(number, "text"),
    "group": lambda number: ExceptionGroup("of", [Failure(number)]),
}


def _text_of_raised(error):
    try:
        raise error
    except Exception as caught:
        return str(caught)


@pytest.mark.filterwarnings("ignore:magpy_like. ")
@pytest.mark.parametrize("make", EXCEPTIONS)
@pytest.mark.parametrize("use", USES)
def test_shown_exceptions_match_eager(use, make):
    def program(x, error):
        return x * 2, USES[use](error)

    compiled = magpy.compile(program, backend="eager")
    for number in (1, 1, 2, 3, 4, 1):
        made = [EXCEPTIONS[make](number) for _ in range(2)]
        assert_same(compiled(tensor(1, 2), made[0]), program(tensor(1, 2), made[1]))


@pytest.mark.filterwarnings("ignore:magpy_like. ")
@pytest.mark.parametrize("use", USES)
def test_shown_exception_of_a_varying_number_matches_eager(use):
    def program(x, number):
        try:
            raise Failure(number)
        except Failure as error:
            return x * 2, USES[use](error)

    compiled = magpy.compile(program, backend="eager")
    for number in (1, 1, 2, 3, 4, 1):
        assert_same(compiled(tensor(1, 2), number), program(tensor(1, 2), number))


@pytest.mark.filterwarnings("ignore:magpy_like. ")
@pytest.mark.parametrize("make", [Failure, ValueError, lambda n: Failure("of", n)])
@pytest.mark.parametrize("use", [copy.copy, lambda error: type(error)(*error.args)])
def test_exceptions_made_of_varying_arguments_match_eager_after_a_split(use, make):
    def program(x, error):
        made = use(error)
        print(end="")
        return made.args, x * 2

    compiled = magpy.compile(program, backend="eager")
    for number in (1, 1, 2, 3, 4, 1):
        expected = program(tensor(1, 2), make(number))
        assert_same(compiled(tensor(1, 2), make(number)), expected)


def test_number_decides_on_the_class_of_an_error():
    def program(x, number):
        return x * 2, type(OSError(number, "text"))

    compiled = magpy.compile(program, backend="eager")
    for number in (2, 2, 3, 4, 13, 2):
        assert_same(compiled(torch.ones(1), number), program(torch.ones(1), number))

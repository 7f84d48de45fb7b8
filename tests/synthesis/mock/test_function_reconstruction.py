"""Functions that a program creates are created again, with all that they hold."""

import functools

import pytest

from tests.programs import check, one


def _wrapped(x):
    def function(v):
        return v

    @functools.wraps(function)
    def other(v):
        return function(v)

    return function, other, x * 2


def _assigned(x):
    def function(v):
        return v

    def other(v: int):
        return v

    other.__annotations__ = function.__annotations__
    return function, other, x * 2


def _held(x):
    def function(v):
        return v

    return function, function.__annotations__, x * 2


@pytest.mark.parametrize("program", [_wrapped, _assigned, _held])
def test_annotations_may_be_shared_although_empty(program):
    check(program, one())
